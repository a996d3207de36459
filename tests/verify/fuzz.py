"""Random plans for random models, verified: `make test-fuzz`, or `python -m tests.verify.fuzz --seed 17` for one.

A seed decides everything, so a failure is repeated by its seed. Whatever is drawn is valid: a refusal is a bug.
"""

import random
from pathlib import Path
from typing import Any

from monograph.models.config import FeedForwardConfig, LossConfig, RouterConfig
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.parallel.mesh import Mesh, all_meshes
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.fuzzing import Failed, run_fuzzer
from tests.kit.ranks import pool
from tests.kit.tiny import MODELS, WITH_EXPERTS, tiny
from tests.verify.on_ranks import verify_on_ranks

DEGREES = (1, 2, 3, 4, 6, 8)


def draw(seed: int, folder: Path) -> tuple[Mesh, TrainerConfig]:
    """The mesh and the run that a seed stands for."""
    pick = random.Random(seed)
    model = pick.choice(MODELS)
    world = pick.choice((2, 2, 3, 4, 4, 4, 6, 8, 8))
    meshes = all_meshes(world, degrees=DEGREES)
    mesh = pick.choice([each for each in meshes if model in WITH_EXPERTS or each.ep * each.etp == 1])
    changes = draw_training(pick, mesh) | draw_model(pick, model, mesh)
    config = tiny(
        model,
        folder,
        changes,
        replicate=mesh.dp_replicate,
        shard=pick.choice((-1, mesh.dp_shard)),
        tp=mesh.tp,
        ep=mesh.ep,
        etp=mesh.etp,
        fsdp=pick.choice(("fsdp2", "graph")),
        reshard_after_forward=pick.choice((True, False)),
    )
    assert plan_run_mesh(config, world) == mesh
    return mesh, config


def draw_training(pick: random.Random, mesh: Mesh) -> dict[str, Any]:
    """Batches, lengths, masks."""
    local = pick.choice((1, 2))
    whole = local * mesh.data_parts * pick.choice((1, 1, 2, 3))
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": pick.choice((-1, whole)),
        "training.seq_len": mesh.tp * pick.randint(3, 8),
        "training.max_norm": pick.choice((0.0, 0.1, 1.0)),
        "model.mask": pick.choice(("causal", "document")),
        "model.loss": LossConfig(chunk_tokens=pick.choice((5, 16, 2048))),
        "activation_checkpoint.mode": pick.choice(("none", "none", "full", "selective")),
        "debug.seed": pick.randint(0, 1000),
    }


def draw_model(pick: random.Random, model: str, mesh: Mesh) -> dict[str, Any]:
    """Sizes that tensor and expert degrees divide; vocabulary and width need not."""
    kv_heads = mesh.tp * pick.choice((1, 2))
    heads = kv_heads * pick.choice((1, 2, 3))
    changes: dict[str, Any] = {
        "model.dim": 2 * pick.randint(8, 33),
        "model.n_layers": pick.choice((1, 2)),
        "model.vocab_size": pick.randint(259, 280),
        "model.init_std": pick.choice((0.02, 0.1)),
        "model.tied_embeddings": pick.choice((True, False)),
        "model.feed_forward": FeedForwardConfig(hidden_dim=mesh.tp * pick.randint(3, 20)),
        "model.attention.n_heads": heads,
    }
    if model == "deepseek_v3":
        changes |= {
            "model.n_dense_layers": pick.choice((0, 1)),
            "model.n_layers": 2,
            "model.attention.q_lora_rank": pick.choice((0, 7, 12)),
            "model.attention.kv_lora_rank": pick.randint(4, 12),
        }
    else:
        changes |= {
            "model.attention.n_kv_heads": kv_heads,
            "model.attention.head_dim": 2 * pick.randint(2, 8),
            "model.attention.qk_norm": pick.choice((True, False)),
        }
    return changes | (draw_experts(pick, mesh) if model in WITH_EXPERTS else {})


def draw_experts(pick: random.Random, mesh: Mesh) -> dict[str, Any]:
    """Any router over any number of experts that the degrees divide."""
    n_experts = mesh.ep * pick.choice((1, 2, 3)) * (1 if mesh.ep > 1 else 4)
    groups = pick.choice([count for count in (1, 2, 4) if n_experts % count == 0 and n_experts // count >= 2] or [1])
    top_groups = pick.randint(1, groups)
    drawn = {
        "model.moe.n_experts": n_experts,
        "model.moe.hidden_dim": mesh.tp * pick.randint(2, 9),
        "model.moe.n_shared_experts": pick.choice((0, 1, 2)),
        "model.moe.router.top_k": pick.randint(1, min(3, n_experts // groups * top_groups)),
        "model.moe.router.score": pick.choice(("softmax", "sigmoid")),
        "model.moe.router.n_groups": groups,
        "model.moe.router.top_groups": top_groups,
        "model.moe.router.group_score": pick.choice(("top2_sum", "max")),
        "model.moe.router.norm": pick.choice((True, False)),
        "model.moe.router.expert_bias": pick.choice((True, False)),
        "model.moe.router.bias_update_rate": 0.02,
        "model.moe.experts.backend": pick.choice(("loop", "grouped_mm", "auto")),
        "model.moe.balance": draw_balance(pick, groups),
    }
    if top_groups == groups:  # what has no effect is refused
        del drawn["model.moe.router.group_score"]
    if not drawn["model.moe.router.expert_bias"]:
        drawn["model.moe.router.bias_update_rate"] = RouterConfig().bias_update_rate
    return drawn


def draw_balance(pick: random.Random, groups: int) -> LoadBalanceConfig:
    """Any auxiliary losses; those between groups where there are groups."""
    coefficient = pick.choice((0.0, 0.1, 0.1))
    if not coefficient:
        return LoadBalanceConfig(z_coefficient=pick.choice((0.0, 0.01)))
    return LoadBalanceConfig(
        coefficient=coefficient,
        scope=pick.choice(("sequence", "micro_batch", "global")),
        times_top_k=pick.choice((True, False)),
        group_coefficient=pick.choice((0.0, 0.05)) if groups > 1 else 0.0,
        group_traffic_coefficient=pick.choice((0.0, 0.05)) if groups > 1 else 0.0,
        z_coefficient=pick.choice((0.0, 0.01)),
    )


def check_seed(seed: int, folder: Path) -> str:
    """Verify the plan of a seed; empty when it is equal, else what differs."""
    mesh, config = draw(seed, folder)
    verdict = pool.run(mesh.world_size, verify_on_ranks, config)[0]
    return "" if verdict.is_equal else f"step {verdict.step}: {verdict.blame}"


def check_plan(seed: int, folder: Path) -> list[str]:
    """The same for the fuzzer's loop."""
    mesh, config = draw(seed, folder)
    problem = check_seed(seed, folder)
    if problem:
        parts = (mesh, config.model, config.training, config.parallelism, config.activation_checkpoint)
        raise Failed("\n".join([problem, *(f"  {part}" for part in parts)]))
    axes = [name for name in ("dp_replicate", "dp_shard", "tp", "ep", "etp") if getattr(mesh, name) > 1]
    return ["equal to one device", f"world {mesh.world_size}", config.parallelism.fsdp, *axes]


if __name__ == "__main__":
    run_fuzzer("tests.verify.fuzz", check_plan)

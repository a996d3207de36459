"""A seed becomes a run of any family on a mesh of any size, with options that change the graph of its step."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import FeedForwardConfig, LossConfig
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.tiny import RECIPES
from tests.steps.graph_draw import Drawn, draw_memory, draw_off, draw_on, draw_overlap, draw_passes, draw_updates
from tests.verify.fuzz import draw_balance

FAMILIES = tuple(RECIPES)
HAVE_EXPERTS = ("qwen3_moe", "deepseek_v3", "gpt_oss", "llama4")
WINDOWED = ("gpt_oss", "gemma2", "gemma3")
"""Families whose config names the attention of every layer."""
WORLDS = (2, 3, 4, 4, 6, 8, 8, 12, 16, 16, 24, 32, 32, 48, 64, 64, 96, 128, 128, 192, 256, 256)
AXES = ("dp_replicate", "dp_shard", "dp_shard", "cp", "tp", "tp", "pp")
"""Axes that a prime factor of the number of ranks may go to."""
MOST = {"cp": 8, "tp": 8, "pp": 4}
MOST_EXPERTS = 64
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv")
TWO_STAGES = ("interleaved_1f1b", "zbv")
"""Schedules with two stages on every rank."""
MOST_DRAWS = 200


def draw_accepted(
    seed: int, folder: Path, draw: Callable[[random.Random, int], Drawn]
) -> tuple[Drawn, TrainerConfig, list[str]]:
    """The first run of a seed that its config accepts, and the fields that earlier ones were refused for."""
    pick, refused = random.Random(seed), []
    for _ in range(MOST_DRAWS):
        drawn = draw(pick, seed)
        try:
            config = drawn.graph(folder)
            assert plan_run_mesh(config, drawn.mesh.world_size) == drawn.mesh
        except ConfigError as error:
            if not error.what or not (error.why or error.do):
                raise
            refused.append(error.what.split(" ")[0])
            continue
        return drawn, config, refused
    raise AssertionError(f"{MOST_DRAWS} draws of seed {seed} were refused, for {sorted(set(refused))}")


def draw_run(pick: random.Random, seed: int) -> Drawn:
    """Any family on a mesh of at most 256 ranks."""
    model = pick.choice(FAMILIES)
    return draw_on_mesh(pick, seed, model, draw_mesh(pick, model, pick.choice(WORLDS)))


def draw_on_mesh(pick: random.Random, seed: int, model: str, mesh: Mesh) -> Drawn:
    """A run of a family on this mesh."""
    degrees = {
        "replicate": mesh.dp_replicate,
        "shard": mesh.dp_shard,
        "cp": mesh.cp,
        "method": mesh.cp_method,
        "gather": mesh.cp_gather,
        "tp": mesh.tp,
        "ep": mesh.ep,
        "etp": mesh.etp,
        "pipeline_parallel_degree": mesh.pp,
        "reshard_after_forward": pick.choice((True, False)),
        "reduce_dtype": pick.choice(("float32", "bfloat16")),
    }
    stages = mesh.pp
    if mesh.pp > 1:
        degrees["pipeline_schedule"] = pick.choice(SCHEDULES)
        stages *= 2 if degrees["pipeline_schedule"] in TWO_STAGES else 1
    changes = draw_batch(pick, mesh) | draw_sizes(pick, model, mesh, stages)
    changes |= draw_memory(pick) | draw_passes(pick) | draw_updates(pick)
    if model == "gpt_oss" and "activation_checkpoint.save" in changes:
        changes["activation_checkpoint.save"] = ("layers.*.attention.heads.wo::mm",)
    if model in HAVE_EXPERTS:
        changes |= draw_experts(pick, model, mesh)
        changes |= draw_overlap(pick, mesh) if mesh.pp * mesh.cp == 1 and pick.random() < 0.5 else {}
    changes["passes.on"] = draw_on(pick, changes)
    return Drawn(seed, model, mesh, changes | draw_off(pick, changes), degrees)


def draw_mesh(pick: random.Random, model: str, world: int) -> Mesh:
    """Any mesh of a family on so many ranks; its config may still refuse it."""
    degrees = dict.fromkeys(AXES, 1)
    for prime in find_primes(world):
        room = [axis for axis in AXES if degrees[axis] * prime <= MOST.get(axis, world)]
        degrees[pick.choice(room)] *= prime
    shards = degrees["dp_shard"] * degrees["cp"] * degrees["tp"]
    etp = pick.choice((1, degrees["tp"])) if model in HAVE_EXPERTS else 1
    most = min(shards // etp, MOST_EXPERTS) if model in HAVE_EXPERTS else 1
    ep = pick.choice([degree for degree in range(1, most + 1) if shards // etp % degree == 0])
    methods = {"cp_method": pick.choice(("all_gather", "all_gather", "ulysses"))} if degrees["cp"] > 1 else {}
    if model == "deepseek_v3" and methods.get("cp_method") == "all_gather":
        methods["cp_gather"] = pick.choice(("keys_values", "latent"))
    return Mesh(**degrees, ep=ep, etp=etp, **methods)


def find_primes(number: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    found = []
    for prime in (7, 5, 3, 2):
        while number % prime == 0:
            number //= prime
            found.append(prime)
    assert number == 1
    return found


def draw_batch(pick: random.Random, mesh: Mesh) -> dict[str, Any]:
    """Batches, lengths, masks, dtypes, rounds of an update."""
    local = pick.choice((1, 1, 2, 3))
    rounds = pick.choice((1, 2, 3)) if mesh.pp == 1 else 2 * mesh.pp * pick.choice((1, 1, 2))
    length = mesh.cp * math.lcm(2, mesh.tp) * pick.choice((1, 2, 3, 8))
    compute = pick.choice(("float32", "bfloat16"))
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": -1 if rounds == 1 else local * mesh.data_parts * rounds,
        "training.seq_len": length,
        "training.compute_dtype": compute,
        "training.max_norm": pick.choice((0.0, 1.0)),
        "validator.interval": pick.choice((0, 0, 0, 1)),
        "model.rope.max_seq_len": max(64, length),
        "model.mask": pick.choice(("causal", "document")),
        "model.loss": LossConfig(chunk_tokens=pick.choice((1, 5, 16, 2048))),
        "debug.seed": pick.randint(0, 1000),
    }


def draw_sizes(pick: random.Random, model: str, mesh: Mesh, stages: int) -> dict[str, Any]:
    """Sizes that the degrees divide, and others."""
    keys = mesh.tp * pick.choice((1, 2, 4))
    layers = max(3 if model == "deepseek_v3" else 2, stages - 2 + pick.choice((0, 0, 1, 2)))
    changes: dict[str, Any] = {
        "model.dim": 2 * pick.randint(8, 33),
        "model.n_layers": layers,
        "model.vocab_size": pick.randint(259, 280),
        "model.tied_embeddings": pick.choice((True, False)),
        "model.attention.n_heads": keys * pick.choice((1, 2, 3)),
    }
    if model == "deepseek_v3":
        changes["model.n_dense_layers"] = pick.choice((0, 1))
        changes["model.attention.q_lora_rank"] = pick.choice((0, 12))
    else:
        changes["model.attention.n_kv_heads"] = keys
        changes["model.attention.head_dim"] = 2 * pick.randint(2, 8)
    if model in WINDOWED:
        changes["model.layer_kinds"] = tuple(pick.choice(("window", "full")) for _ in range(layers))
    if model in ("mistral", *WINDOWED):
        changes["model.window"] = pick.randint(2, 20)
    if model == "llama4":
        changes["model.chunk"] = pick.randint(2, 20)
        changes["model.moe_interval"] = pick.choice((1, 2))
    if model in ("llama3", "qwen3", "mistral", "deepseek_v3", "llama4"):
        changes["model.feed_forward"] = FeedForwardConfig(hidden_dim=mesh.tp * pick.randint(3, 20))
    elif model.startswith("gemma"):
        changes["model.feed_forward.hidden_dim"] = mesh.tp * pick.randint(3, 20)
    return changes


def draw_experts(pick: random.Random, model: str, mesh: Mesh) -> dict[str, Any]:
    """Experts that the degrees divide, with any auxiliary losses."""
    n_experts = mesh.ep * pick.choice((1, 2, 4)) * (1 if mesh.ep > 2 else 4)
    groups = pick.choice((1, 2, 4)) if model == "deepseek_v3" else 1
    groups = groups if n_experts % groups == 0 and n_experts // groups >= 2 else 1
    top_groups = pick.randint(1, groups)
    changes: dict[str, Any] = {
        "model.moe.n_experts": n_experts,
        "model.moe.hidden_dim": mesh.tp * pick.choice((2, 3, 8)),
        "model.moe.router.top_k": pick.randint(1, min(3, n_experts // groups * top_groups)),
        "model.moe.router.n_groups": groups,
        "model.moe.router.top_groups": top_groups,
        "model.moe.balance": draw_balance(pick, groups),
    }
    if model == "deepseek_v3":
        changes["model.moe.n_shared_experts"] = pick.choice((0, 1, 2))
    return changes

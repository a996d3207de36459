"""A seed becomes a run in graph mode: any model on any mesh with any passes, and the command line that asks for it."""

import random
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monograph.config.configurable import check_config
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.config.text import format_words
from monograph.execute.config import ActivationCheckpointConfig
from monograph.models.config import LossConfig
from monograph.parallel.mesh import Mesh, all_meshes
from monograph.passes.config import PassesConfig
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig
from tests.kit.tiny import MODELS, RECIPES, WITH_EXPERTS, tiny
from tests.verify.fuzz import draw_model

WORLDS = (1, 1, 1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 7, 8, 8)
DEGREES = tuple(range(1, 9))
COMPILERS = ("mark_regions", "compile_regions", "compile_whole")
"""Passes that call a compiler: minutes each, with tests of their own."""
EXPERTS_ONLY = ("layers.*.moe",)
WHOLE_LAYERS = ("layers.*", *EXPERTS_ONLY)
"""What may be chunked; only chunks of the batch pass through attention."""
ROUNDS = ("merge_matmuls", "fuse_swiglu_epilogue")
"""Options under which numbers change within rounding, so that bits are not compared with eager ones."""


@dataclass(frozen=True)
class Drawn:
    """What a seed stands for."""

    seed: int
    model: str
    mesh: Mesh
    changes: dict[str, Any]
    degrees: dict[str, Any]

    def graph(self, folder: Path) -> TrainerConfig:
        """The run in graph mode; refused with a `ConfigError` where the options contradict each other."""
        changes = {"validator.interval": 1, **self.changes, "compile.mode": "graph"}
        return tiny(self.model, folder, changes, **self.degrees)

    def eager(self, folder: Path) -> TrainerConfig:
        """The same run op by op. Chunks change numbers, so eager mode makes the same ones."""
        config = self.graph(folder)
        strategy = "trace" if config.compile.expert_overlap.is_on else "off"
        changed = {
            "compile.mode": "eager",
            "compile.cuda_graph": "auto",
            "compile.numerics": "exact",
            "compile.expert_overlap.strategy": strategy,
            "parallelism.fsdp": "graph",
            "passes": PassesConfig(),
            "activation_checkpoint": ActivationCheckpointConfig(),
        }
        for path, value in changed.items():
            config = replace_leaf(config, path, value)
        check_config(config)
        return config

    @property
    def has_same_bits(self) -> bool:
        """Whether the graph promises the bits of eager mode."""
        return not set(self.changes.get("passes.on", ())) & set(ROUNDS)

    def labels(self) -> list[str]:
        """What is counted about it."""
        axes = [name for name in ("dp_replicate", "dp_shard", "tp", "ep", "etp") if getattr(self.mesh, name) > 1]
        corner = ["ep1 with etp"] if self.mesh.etp > 1 == self.mesh.ep else []
        set_here = [name for name in self.changes if name.startswith(("passes.", "compile."))]
        sections = sorted({".".join(name.split(".")[:2]) for name in set_here})
        numbers = [f"compute {self.changes['training.compute_dtype']}", f"mask {self.changes['model.mask']}"]
        return [f"world {self.mesh.world_size}", *axes, *corner, *sections, *numbers]

    def command(self, what: str, folder: Path) -> str:
        """The words that ask for the same on the command line, on the built-in data."""
        recipe = load_recipe(RECIPES[self.model])
        default = {leaf.path: leaf.value for leaf in find_leaves(recipe)}
        words = ["monograph", what, RECIPES[self.model], "--ranks", str(self.mesh.world_size)]
        for leaf in find_leaves(self.graph(folder)):
            if leaf.value != default.get(leaf.path) and leaf.path not in ("job.dump_folder", "dataloader.dataset"):
                words += [f"--{leaf.path}", *shlex.split(format_words(leaf.value))]
        return shlex.join(words)


def draw(seed: int) -> Drawn:
    """The run that a seed stands for."""
    pick = random.Random(seed)
    model = pick.choice((*MODELS, *WITH_EXPERTS))
    meshes = all_meshes(pick.choice(WORLDS), degrees=DEGREES)
    mesh = pick.choice([each for each in meshes if model in WITH_EXPERTS or each.ep * each.etp == 1])
    changes = draw_numbers(pick, mesh) | draw_model(pick, model, mesh)
    if model in WITH_EXPERTS:
        changes |= draw_backend(pick, mesh, changes) | draw_overlap(pick, mesh)
    changes |= draw_memory(pick) | draw_passes(pick) | draw_updates(pick)
    changes["passes.on"] = draw_on(pick, changes)
    changes |= draw_off(pick, changes)
    degrees = {
        "replicate": mesh.dp_replicate,
        "shard": mesh.dp_shard,
        "tp": mesh.tp,
        "ep": mesh.ep,
        "etp": mesh.etp,
        "reshard_after_forward": pick.choice((True, False)),
        "reduce_dtype": pick.choice(("float32", "float32", "bfloat16")),
    }
    return Drawn(seed, model, mesh, changes, degrees)


def draw_numbers(pick: random.Random, mesh: Mesh) -> dict[str, Any]:
    """Batches, lengths, masks and dtypes."""
    local = pick.choice((1, 1, 2, 4))
    accumulated = pick.choice((-1, -1, 2, 3))
    compute = pick.choice(("float32", "float32", "float32", "bfloat16"))
    return {
        "training.local_batch_size": local,
        "training.global_batch_size": -1 if accumulated == -1 else local * mesh.data_parts * accumulated,
        "training.seq_len": mesh.tp * pick.choice((1, 2, 3, 4, 6, 8)),
        "training.max_norm": pick.choice((0.0, 0.1, 1.0)),
        "training.compute_dtype": compute,
        "training.dtype": pick.choice(("float32", "float32", compute)),
        "model.mask": pick.choice(("causal", "document")),
        "model.kernels": pick.choice(("auto", "plain")),
        "model.loss": LossConfig(chunk_tokens=pick.choice((1, 5, 16, 2048))),
        "debug.seed": pick.randint(0, 1000),
    }


def draw_backend(pick: random.Random, mesh: Mesh, changes: dict[str, Any]) -> dict[str, Any]:
    """How the experts compute; most of those that want the grouped kernel have widths that it takes."""
    if changes["training.compute_dtype"] == "float32":
        return {"model.moe.experts.backend": pick.choice(("loop", "auto"))}
    backend = pick.choice(("loop", "auto", "grouped_mm", "grouped_mm"))
    if backend == "loop" or pick.random() < 0.1:
        return {"model.moe.experts.backend": backend}
    hidden = 8 * mesh.tp * pick.choice((1, 2))
    return {"model.moe.experts.backend": backend, "model.dim": 8 * pick.randint(2, 8), "model.moe.hidden_dim": hidden}


def draw_overlap(pick: random.Random, mesh: Mesh) -> dict[str, Any]:
    """Half of the runs cut modules with experts into chunks; batch and sequence are made to fit."""
    if pick.random() < 0.5:
        return {}
    chunks, dim = pick.choice((2, 2, 3, 4)), pick.choice(("batch", "batch", "seq"))
    per_chunk = pick.choice((2, 2, 2, 3, 3, 1))
    changes: dict[str, Any] = {
        "compile.expert_overlap.strategy": pick.choice(("trace", "graph", "graph")),
        "compile.expert_overlap.chunk_dim": dim,
        "compile.expert_overlap.modules": pick.choice(WHOLE_LAYERS if dim == "batch" else EXPERTS_ONLY),
        "compile.expert_overlap.num_chunks": chunks,
        "compile.expert_overlap.grad_sum": pick.choice(("before_reduce", "after_reduce")),
    }
    if mesh.ep == 1 or pick.random() < 0.5:
        changes["passes.off"] = ("overlap_experts",)
    if dim == "batch":
        local = chunks * per_chunk
        return changes | {"training.local_batch_size": local, "training.global_batch_size": -1}
    return changes | {"training.seq_len": mesh.tp * chunks * per_chunk}


def draw_memory(pick: random.Random) -> dict[str, Any]:
    """What is saved, recomputed or offloaded."""
    kind = pick.choice(("none", "all", "min_cut", "full", "selected", "budget", "offload"))
    saved = "activation_checkpoint"
    return {
        "none": {},
        "all": {f"{saved}.mode": "none"},
        "min_cut": {f"{saved}.mode": "min_cut"},
        "full": {f"{saved}.mode": "full"},
        "selected": {f"{saved}.mode": "full", f"{saved}.save": ("layers.*.attention.wo::mm",)},
        "budget": {f"{saved}.mode": "budget", f"{saved}.budget_gib": pick.choice((0.0005, 0.002, 1.0))},
        "offload": {
            "passes.offload_activations.budget_gib": pick.choice((0.00001, 1.0)),
            "passes.offload_activations.min_bytes": pick.choice((1, 64, 4096)),
            "passes.offload_activations.prefetch_blocks": pick.choice((0, 1, 3)),
            **({f"{saved}.mode": pick.choice(("full", "min_cut"))} if pick.random() < 0.5 else {}),
        },
    }[kind]


def draw_passes(pick: random.Random) -> dict[str, Any]:
    """Sizes of buckets, distances of prefetches, matmuls that are merged."""
    changes: dict[str, Any] = {}
    if pick.random() < 0.4:
        changes["passes.bucket_collectives.max_bytes"] = pick.choice((1, 1000, 100_000))
    if pick.random() < 0.3:
        changes["passes.prefetch_all_gathers.ahead"] = pick.choice((1, 2, 5))
    if pick.random() < 0.15:
        changes["passes.merge_matmuls.max_columns"] = pick.choice((8, 65536))
    return changes


def draw_on(pick: random.Random, changes: dict[str, Any]) -> tuple[str, ...]:
    """Passes that are off by default and switched on; most of them where they can run."""
    on = []
    if "passes.merge_matmuls.max_columns" in changes:
        on += ["merge_matmuls", *(["fuse_swiglu_epilogue"] if pick.random() < 0.5 else [])]
    if pick.random() < 0.3:
        on.append("cache_cast_weights")
    if changes["optimizer.implementation"] == "single_pass" and pick.random() < 0.5:
        on.append("narrow_gradients")
    return tuple(on)


def draw_off(pick: random.Random, changes: dict[str, Any]) -> dict[str, Any]:
    """Passes that are switched off: seldom one that the run asks for, which must be refused."""
    if pick.random() < 0.6:
        return {}
    asked = {name.split(".")[1] for name in changes if name.startswith("passes.")} | set(changes["passes.on"])
    if pick.random() < 0.1:
        asked = set()
    if "compile.expert_overlap.strategy" in changes:
        asked |= {"chunk_experts", "overlap_experts"}
    choices = [name for name in ORDER if name not in (*COMPILERS, *asked)]
    drawn = pick.sample(choices, pick.choice((1, 1, 2, 3, len(choices))))
    return {"passes.off": (*changes.get("passes.off", ()), *drawn)}


def draw_updates(pick: random.Random) -> dict[str, Any]:
    """The optimizer."""
    kind = pick.choice(("auto", "auto", "foreach", "for_loop", "single_pass", "single_pass"))
    return {"optimizer.implementation": kind, "optimizer.weight_decay": pick.choice((0.0, 0.1))}

"""A small copy of a run: the same mesh, passes and kinds of blocks at sizes that one process computes in seconds.

Sizes that ranks divide stay divisible by what divides them. Fields are known by name, in whatever part of a model's
config they stand; what a family adds under other names keeps its size.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from monograph.capture.block_repeats import describe_module
from monograph.config.configurable import BaseConfig, check_config, walk_configs
from monograph.config.leaves import replace_leaf
from monograph.models.model import Model
from monograph.models.model_config import ModelConfig
from monograph.parallel.fit import plan_schedule
from monograph.parallel.mesh import Mesh
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.train.config import TrainerConfig

BLOCKS = 2
"""Blocks of each kind in a small copy: one that follows another of its kind is in it."""
MOST_WIDTH = 64
"""Widths up to which a size is a multiple of the ranks that share a stack of experts: what each of them computes grows
with its square."""
COMPILED = ("compile_whole", "compile_regions", "mark_regions")
"""Passes that put compiled code in the place of ops; they run where they are asked for only."""
Rule = Callable[[BaseConfig, int, Mesh], int]


def make_small_copy(config: TrainerConfig, mesh: Mesh) -> TrainerConfig:
    """The small copy of a run on this mesh, as a graph of ops; a config that its own checks accept."""
    on = tuple(name for name in config.passes.on if name not in COMPILED)
    passes = config.passes.replace(on=on, mark_regions=config.passes.mark_regions.replace(regions=()))
    compiled = config.compile.replace(mode="graph", cuda_graph="off", artifact="")
    rows = find_sequences(config)
    rounds = 1 if config.training.global_batch_size == -1 else find_rounds(config, mesh)
    stages = plan_schedule(config.parallelism, rounds).stages if mesh.pp > 1 else 1
    model = shrink_model(config.model, mesh, least=stages)
    parallelism = config.parallelism.replace(pipeline_stages=("auto",))
    config = config.replace(passes=passes, compile=compiled, model=model, parallelism=parallelism)
    length = min(config.training.seq_len, find_length(mesh, config.compile.expert_overlap))
    share = rows * length / (config.training.local_batch_size * config.training.seq_len)
    training = config.training.replace(
        seq_len=length,
        local_batch_size=rows,
        global_batch_size=-1 if rounds == 1 else rows * mesh.data_parts * rounds,
    )
    config = config.replace(training=training, model=shrink_chunks(config.model, share))
    check_config(config)
    return config


def make_real_sample(config: TrainerConfig, small: TrainerConfig) -> TrainerConfig:
    """A run at its own sizes with as few blocks as its small copy, and one more of each kind: one that has others of
    its kind on both sides."""
    model = shorten(config.model, BLOCKS + 1, least=getattr(small.model, "n_layers", 1))
    return config.replace(passes=small.passes, compile=small.compile, model=model)


def find_rounds(config: TrainerConfig, mesh: Mesh) -> int:
    """Micro-batches of an update on each rank: one, two, or enough to fill a pipeline, and as many over."""
    training = config.training
    rounds = max(1, training.global_batch_size // (training.local_batch_size * mesh.data_parts))
    return min(rounds, 2 * mesh.pp + rounds % mesh.pp) if mesh.pp > 1 else min(rounds, 2)


def find_sequences(config: TrainerConfig) -> int:
    """Sequences of a micro-batch: one or two, or as many for each chunk that it is cut into."""
    overlap = config.compile.expert_overlap
    chunks = overlap.num_chunks if overlap.is_on and overlap.chunk_dim == "batch" else 1
    return min(config.training.local_batch_size, 2 * chunks)


def find_length(mesh: Mesh, overlap: ExpertOverlapConfig) -> int:
    """Tokens of a sequence: at least 16, at least two on every rank, and divisible as context parallelism needs it, and
    as chunks of tokens do."""
    step = mesh.cp * math.lcm(2, mesh.tp) * 2
    if overlap.is_on and overlap.chunk_dim == "seq":
        step = math.lcm(step, 2 * overlap.num_chunks * mesh.cp * mesh.tp)
    return step * math.ceil(16 / step)


def shrink_model(config: ModelConfig, mesh: Mesh, *, least: int = 1) -> ModelConfig:
    """The model with as few blocks, and as small sizes, as show everything that the mesh does to it."""
    for path, part in walk_configs(config):
        known = {name for name in _RULES if isinstance(getattr(part, name, None), int)}
        changed = {name: _RULES[name](part, getattr(part, name), mesh) for name in known}
        changed |= _shrink_heads(part, mesh) | _shrink_experts(part, mesh)
        for name, value in changed.items():
            if value != getattr(part, name):
                config = replace_leaf(config, f"{path}.{name}".lstrip("."), value)
    return shorten(config, least=least)


def shrink_chunks(config: ModelConfig, share: float) -> ModelConfig:
    """As many chunks of a loss, where there are tokens for them: the copy has this share of the run's tokens."""
    for path, part in walk_configs(config):
        now = getattr(part, "chunk_tokens", None)
        if isinstance(now, int):
            config = replace_leaf(config, f"{path}.chunk_tokens".lstrip("."), max(1, math.ceil(now * share)))
    return config


def shorten(config: ModelConfig, blocks: int = BLOCKS, least: int = 1) -> ModelConfig:
    """The shortest prefix of the blocks that has so many of every kind, or all there are, and `least` in all."""
    with torch.device("meta"):
        model: Model = config.build()
    kinds = [repr(describe_module(block)) for block in model.blocks().values()]
    if getattr(config, "n_layers", None) != len(kinds):
        return config
    wanted = {kind: min(blocks, kinds.count(kind)) for kind in kinds}
    sizes = range(min(least, len(kinds)), len(kinds) + 1)
    count = next(size for size in sizes if all(kinds[:size].count(kind) >= n for kind, n in wanted.items()))
    changes: dict[str, Any] = {"n_layers": count}
    for name in ("layer_kinds", "layer_types"):
        if getattr(config, name, ()):
            changes[name] = getattr(config, name)[:count]
    for name in ("no_rope_layers", "moe_layers"):
        if getattr(config, name, ()):
            changes[name] = tuple(number for number in getattr(config, name) if number < count)
    return config.replace(**changes)


def _width(part: BaseConfig, now: int, mesh: Mesh) -> int:
    return min(now, _round_up(16, now, 2 * mesh.tp, mesh.efsdp * mesh.etp))


def _dim(part: BaseConfig, now: int, mesh: Mesh) -> int:
    return min(now, _round_up(32, now, 1, mesh.efsdp))


def _round_up(least: int, now: int, step: int, shards: int) -> int:
    """The least multiple of `step`; where the real size is one of the ranks that share a stack of experts, two rows for
    each of them, because a single row leaves a layout in memory that several rows do not."""
    fine = math.lcm(step, shards * min(2, max(1, now // shards)))
    if now % fine == 0 and fine <= MOST_WIDTH:
        step = fine
    return step * math.ceil(least / step)


def _vocabulary(part: BaseConfig, now: int, mesh: Mesh) -> int:
    """One that tensor-parallel ranks divide evenly, or not, as the real one."""
    even = 16 * mesh.tp * math.ceil(48 / (16 * mesh.tp))
    return min(now, even if now % mesh.tp == 0 else even - 3)


_RULES: Mapping[str, Rule] = {
    "dim": _dim,
    "vocab_size": _vocabulary,
    "hidden_dim": _width,
    "head_dim": lambda _part, now, _mesh: min(now, 8),
    "q_lora_rank": lambda _part, now, _mesh: min(now, 12),
    "kv_lora_rank": lambda _part, now, _mesh: min(now, 16),
    "qk_nope_head_dim": lambda _part, now, _mesh: min(now, 8),
    "qk_rope_head_dim": lambda _part, now, _mesh: min(now, 4),
    "v_head_dim": lambda _part, now, _mesh: min(now, 8),
    "window": lambda _part, now, _mesh: min(now, 5),
    "chunk": lambda _part, now, _mesh: min(now, 9),
    "floor_scale": lambda _part, now, _mesh: min(now, 5),
    "n_dense_layers": lambda _part, now, _mesh: min(now, 1),
    "max_documents": lambda _part, now, _mesh: min(now, 6),
}


def _shrink_heads(part: BaseConfig, mesh: Mesh) -> dict[str, int]:
    """Fewer heads: what tensor- and context-parallel ranks divide, and up to two queries for a key, or as many more as
    these ranks divide evenly at real size."""
    heads, keys = getattr(part, "n_heads", None), getattr(part, "n_kv_heads", None)
    if not isinstance(heads, int):
        return {}
    few = _divide(keys if isinstance(keys, int) else heads, mesh)
    if not isinstance(keys, int):
        return {"n_heads": few}
    each, step = heads // keys, mesh.tp * mesh.cp
    least = min(each, 2)
    queries = (n for n in range(least, each + 1) if heads % step == 0 and few * n % step == 0)
    found = {"n_kv_heads": few, "n_heads": few * next(queries, least)}
    return found | ({"head_dim": 8} if getattr(part, "head_dim", None) == 0 else {})


def _divide(count: int, mesh: Mesh) -> int:
    each = count // math.gcd(count, mesh.tp)
    return math.gcd(count, mesh.tp) * math.gcd(each, 2 * mesh.cp)


def _shrink_experts(part: BaseConfig, mesh: Mesh) -> dict[str, Any]:
    """Up to two experts on each rank, twice as many as a token chooses (up to two), in up to two groups; and as many as
    ranks that share a stack of them, where the real stack has as many."""
    experts, router = getattr(part, "n_experts", 0), getattr(part, "router", None)
    if not experts or router is None:
        return {}
    groups = min(router.n_groups, 2)
    chosen, top_groups = min(router.top_k, 2), 1 if router.top_groups < router.n_groups else groups
    least = math.lcm(mesh.ep, groups)
    rows = max(2, mesh.efsdp) if mesh.efsdp <= experts // mesh.ep else 2
    counts = (n for n in range(least, experts + 1, least) if n // mesh.ep >= rows and n // groups >= 2 * chosen)
    count = next(counts, experts)
    return {
        "n_experts": count,
        "router": router.replace(top_k=chosen, n_groups=groups, top_groups=top_groups),
    }

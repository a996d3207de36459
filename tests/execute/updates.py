"""A few updates of a tiny model, run in some way, with every number they leave: what tests of execution compare.

A file of its own, because ranks import it. Routing is forced from step to step by the experts' selection biases, so
that steps differ as much as they can: all tokens to one half of the experts, to the other, or as the router likes.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monograph.execute.base import MeshStep
from monograph.models.model import find_scalars
from monograph.parallel.groups import Groups, joined_groups
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients, apply_update
from tests.kit.tiny import tiny
from tests.parallel.rank_work import read_batches as read_updates

CPU = torch.device("cpu")
PATIENCE_SECONDS = 400.0
"""Compiling takes its time on a busy machine; ranks that hang take longer."""
FORCED = 100.0
"""A bias that no score can make up for."""

_FOUR_EXPERTS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"model.moe.n_experts": 4, "model.moe.router.top_k": 1, "model.moe.router.expert_bias": True},
    "deepseek_v3": {
        "model.moe.n_experts": 4,
        "model.moe.router.n_groups": 2,
        "model.moe.router.top_groups": 1,
        "model.moe.router.top_k": 2,
    },
    "llama4": {"model.moe.n_experts": 4, "model.moe.router.expert_bias": True},
    "gpt_oss": {"model.moe.n_experts": 4, "model.moe.router.top_k": 2, "model.moe.router.expert_bias": True},
}
LAYER = {"compile.mode": "layer", "compile.backend": "aot_eager"}
GROUPED = {"training.compute_dtype": "bfloat16", "model.moe.experts.backend": "grouped_mm"}
ROUTINGS: tuple[tuple[int, ...], ...] = ((), (0,), (2, 3), (3,), (0, 1))
"""Step by step: the experts that every token prefers. Whoever is not named, and not needed to fill up, gets nothing."""


def small(
    model: str, folder: Path, changes: Mapping[str, Any] | None = None, *, experts: str = "loop", **degrees: Any
) -> TrainerConfig:
    """The tiny run with four experts: as few as show everything, because each is compiled."""
    chosen = _FOUR_EXPERTS.get(model)
    extra = {} if chosen is None else {"model.moe.experts.backend": "loop"}
    if experts == "grouped":
        extra = {"training.compute_dtype": "bfloat16"} if chosen is None else GROUPED
    return tiny(model, folder, {**(chosen or {}), **extra, **(changes or {})}, **degrees)


@dataclass
class Update:
    """What one update left: a digest of every tensor by name, and the counters."""

    bits: dict[str, str]
    loss: float
    graphs: int | None
    load: list[list[int]] = field(default_factory=list)
    """Rows this rank sent to each expert, layer by layer."""


def differences(left: Sequence[Update], right: Sequence[Update]) -> list[str]:
    """`step name` of every tensor that is not the same, bit for bit, in both."""
    assert len(left) == len(right)
    return [
        f"{number} {name}"
        for number, (one, other) in enumerate(zip(left, right, strict=True), 1)
        for name in sorted({*one.bits, *other.bits})
        if one.bits.get(name) != other.bits.get(name)
    ]


@contextmanager
def one_rank(config: TrainerConfig) -> Iterator[Groups]:
    """The groups of a run without launcher."""
    with joined_groups(plan_run_mesh(config, 1), CPU) as groups:
        yield groups


def read_batches(config: TrainerConfig, step: MeshStep, count: int) -> list[Batch]:
    """The first batches this rank reads, one an update."""
    return [batch for (batch,) in read_updates(config, step, count)]


def force_routing(step: MeshStep, preferred: Sequence[int]) -> None:
    """Let every token prefer some experts."""
    for block in step.model.blocks().values():
        if block.moe is not None:
            bias = block.moe.router.expert_bias
            bias.zero_()
            bias[list(preferred)] = FORCED


def make_updates(
    config: TrainerConfig,
    groups: Groups,
    *,
    routings: Sequence[Sequence[int]] = ROUTINGS,
    prepare: Callable[[MeshStep], None] | None = None,
) -> list[Update]:
    """One update for every routing, as the trainer makes them, looked at between its two halves."""
    step = build_step(config, groups)
    if prepare is not None:
        prepare(step)
    optimizer = config.plan_optimizer().build(parameters=step.trained, weight_cache=step.weight_cache)
    if step.backend is not None and "optimizer" in config.compile.components:
        optimizer.compile(step.backend)
    updates = []
    for batch, preferred in zip(read_batches(config, step, len(routings)), routings, strict=True):
        force_routing(step, preferred)
        loss = add_gradients(step, [batch])
        load = step.metrics.values.get("expert_load")
        seen = {"loss": loss, **buffers_of(step)}
        seen |= {f"metric {name}": value for name, value in step.metrics.values.items()}
        seen |= {f"gradient {name}": p.grad for name, p in step.parameters.items() if p.grad is not None}
        update = Update(digest(seen), loss.item(), None, [] if load is None else load.tolist())
        apply_update(step, optimizer, loss=loss, lr=0.01, max_norm=1.0)
        update.bits |= digest({f"updated {name}": p for name, p in step.parameters.items()} | buffers_of(step, "after"))
        update.graphs = step.compiled_graphs
        updates.append(update)
    return updates


def buffers_of(step: MeshStep, prefix: str = "buffer") -> dict[str, Tensor]:
    """Every buffer by name, the counters among them."""
    return {f"{prefix} {name}": buffer for name, buffer in step.model.named_buffers()}


def normalizers_of(step: MeshStep, **values: int) -> dict[str, Tensor]:
    """What a lone micro-batch's sums are divided by."""
    given = {"valid_tokens": 64, "sequences": 2, "seed": 1, **values}
    return {name: torch.tensor(given[name]) for name in find_scalars(step.model)}


def digest(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Equal digests are equal bits."""
    found = {}
    for name, tensor in tensors.items():
        raw = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        found[name] = hashlib.sha256(raw).hexdigest()
    return found


def on_ranks(config: TrainerConfig, ways: Mapping[str, TrainerConfig]) -> dict[str, list[Update]]:
    """As one of the ranks: the updates of every way to run, one after the other; `config` says the mesh."""
    with joined_groups(plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        return {name: make_updates(way, groups) for name, way in ways.items()}

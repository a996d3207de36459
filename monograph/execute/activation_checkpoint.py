"""Activation checkpointing: activations are dropped after forward and recomputed in backward."""

from collections.abc import Callable
from typing import Any

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from monograph.compat.ops import READ_SIZE, costly_ops, find_collective_ops
from monograph.graph.facts import SaveMode
from monograph.kernels.attention import ATTENTION
from monograph.kernels.grouped_matmul import GROUPED_MATMUL


def find_kept_ops() -> set[Any]:
    """Ops whose results are kept in selective mode: costly to repeat, or deciding where tokens go.

    A repeated top-k could choose differently, and a repeated all_to_all would send everything again.
    """
    return find_collective_ops() | costly_ops() | {READ_SIZE, GROUPED_MATMUL, ATTENTION}


_KEPT = find_kept_ops()


def choose(_context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    """The policy of selective mode: a pure function of the op."""
    return CheckpointPolicy.MUST_SAVE if op in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def selective_contexts() -> Any:
    """What torch's checkpoint asks for to keep some results."""
    return create_selective_checkpoint_contexts(choose)


def run_full(function: Callable[..., Any], *args: Any) -> Any:
    """Keep the inputs only."""
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)


def run_selective(function: Callable[..., Any], *args: Any) -> Any:
    """Keep the inputs and the results worth keeping."""
    return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False, context_fn=selective_contexts)


def find_runner(mode: SaveMode) -> Callable[..., Any] | None:
    """How a block's work is run under a mode; None is the plain way."""
    return {"none": None, "full": run_full, "selective": run_selective}[mode]

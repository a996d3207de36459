"""Name a region of model code, so that the ops inside can be found in the captured graph, forward and backward.

    with annotate("dispatch"):
        rows = ...

Outside of a capture it costs next to nothing. Regions may nest; the innermost name wins. What the ops are for is
recorded the same way, where they are made: nothing has to be guessed from the graph later.
"""

from contextlib import AbstractContextManager
from enum import StrEnum

from monograph.compat.ops import annotate_nodes

REGION, ROLE, SLOT, PATH, DIRECTION, CHUNK = "region", "role", "slot", "path", "direction", "chunk"
ATTENTION = "attention"
"""The keys of the annotations on a captured node."""


class Role(StrEnum):
    """What a node does for the parallel plan; plain compute has none."""

    PARAM_ALL_GATHER = "param_all_gather"
    PARAM_AMAX = "param_amax"
    GRAD_REDUCE_SCATTER = "grad_reduce_scatter"
    SEQUENCE_ALL_GATHER = "sequence_all_gather"
    SEQUENCE_REDUCE_SCATTER = "sequence_reduce_scatter"
    CONTEXT_ALL_GATHER = "context_all_gather"
    CONTEXT_REDUCE_SCATTER = "context_reduce_scatter"
    CONTEXT_ALL_TO_ALL = "context_all_to_all"
    TOKEN_ALL_TO_ALL = "token_all_to_all"
    COUNT_ALL_TO_ALL = "count_all_to_all"
    SPLIT_SIZES = "split_sizes"
    LOSS_ALL_REDUCE = "loss_all_reduce"
    ROUTER_STATS = "router_stats"


class Direction(StrEnum):
    """Which half of the step a node belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"


def annotate(region: str) -> AbstractContextManager[None]:
    """Mark the ops run inside as belonging to `region`; use it in your own modules like ours do."""
    return annotate_nodes({REGION: region})


def annotate_role(role: Role, *, slot: str = "") -> AbstractContextManager[None]:
    """Mark the ops run inside with what they are for and, for parameters, the slot they move."""
    return annotate_nodes({ROLE: role.value, SLOT: slot} if slot else {ROLE: role.value})


def annotate_path(path: str) -> AbstractContextManager[None]:
    """Mark the ops run inside with the module they belong to."""
    return annotate_nodes({PATH: path})


def annotate_direction(direction: Direction) -> AbstractContextManager[None]:
    """Mark the ops run inside as one half of the step."""
    return annotate_nodes({DIRECTION: direction.value})


def annotate_attention(kind: str) -> AbstractContextManager[None]:
    """Mark the ops run inside with what queries see."""
    return annotate_nodes({ATTENTION: kind})


def annotate_chunk(chunk: int) -> AbstractContextManager[None]:
    """Mark the ops run inside as the work of one chunk of a micro-batch."""
    return annotate_nodes({CHUNK: str(chunk)})

"""The typed facts about a node: recorded when it was made, read by everyone, guessed by no one."""

from dataclasses import dataclass, replace

from torch.fx import Node

from monograph.annotate import Direction, Role

_KEY = "monograph_tag"


@dataclass(frozen=True, kw_only=True)
class Tag:
    """Where a node comes from and what it is for."""

    path: str = ""
    """The module; empty outside of the model, e.g. for sums of gradients from several uses."""
    unit: str = ""
    """The unit of the model it belongs to, by path: what it is gathered, scattered and recomputed with."""
    block: int | None = None
    """The unit's number among the blocks; None outside of the blocks."""
    direction: Direction = Direction.FORWARD
    role: Role | None = None
    slot: str = ""
    """The parameter a gather or scatter moves."""
    gradient_of: str = ""
    """The parameter whose gradient a node yields, whole or in part."""
    region: str = ""
    """The innermost `annotate` region."""
    attention: str = ""
    """What queries see by the kind of attention, as `AttentionKind.describe` writes it; empty where a function of the
    user's decides."""
    made_by: str = "capture"
    """The pass that made the node."""
    chunk: int | None = None
    keep: bool | None = None
    """Whether backward gets this forward value as it is (True) or computes it again (False); None: undecided."""

    once: bool = False
    """Whether the value changes only when the weights do (passes cache_cast_weights,
    cache_float8_weights, join_parameters)."""

    compile: str = ""
    """The part to be compiled that the node belongs to."""

    choice: str = ""
    """Why a pass left the node as it is, for readers of the graph."""

    uses_host: bool = False
    """Whether compiled code in the place of nodes waits for the host or copies from it."""

    def is_like(self, other: object) -> bool:
        """Whether both say the same of where a node comes from; what passes plan to do with it may differ."""
        if self is other:
            return True
        if not isinstance(other, Tag):
            return False
        planned = {name: getattr(other, name) for name in ("keep", "once", "compile", "choice")}
        return replace(self, **planned) == other


def make_generic(name: str, unit: str) -> str:
    """A path, or the name of an input, with the number of its block left out: `layers.*.attention`."""
    return name.replace(f"{unit}.", f"{unit.rpartition('.')[0]}.*.", 1) if unit else name


def tag_of(node: Node) -> Tag:
    """A node's tag; every node has one after capture."""
    tag: Tag = node.meta[_KEY]
    return tag


def find_tag(node: Node) -> Tag | None:
    """A node's tag, if it was tagged."""
    return node.meta.get(_KEY)


def has_tag(node: Node) -> bool:
    """Whether a node was tagged."""
    return _KEY in node.meta


def set_tag(node: Node, tag: Tag) -> None:
    """Give a node its tag."""
    node.meta[_KEY] = tag

"""How a broken graph is refused: by naming the node, where it is, and the pass that made it."""

from typing import Any

from torch.fx import Node

from monograph.compat.capture import is_op
from monograph.errors import MonographError
from monograph.graph.tags import has_tag, tag_of


class GraphError(MonographError):
    """A graph does not keep a rule that everything after it relies on: a bug in a pass, never in a configuration."""


def broken(node: Node, what: str, *, why: str, do: str = "") -> GraphError:
    """The error about one node; without advice of its own it points at the pass."""
    maker = tag_of(node).made_by if has_tag(node) else ""
    advice = f"look at what {maker} or a pass after it did to this node" if maker else "look at the pass that ran last"
    return GraphError(f"{what}\n  {describe(node)}", why=why, do=do or advice)


def describe(node: Node) -> str:
    """A node on one line, as far as it can be read: this runs on graphs that are broken."""
    arguments = [_show(value) for value in node.args]
    arguments += [f"{name}={_show(value)}" for name, value in node.kwargs.items()]
    op = str(node.target) if is_op(node.target) else getattr(node.target, "__name__", str(node.target))
    if not has_tag(node):
        return f"%{node.name} = {op}({', '.join(arguments)})"
    tag = tag_of(node)
    facts = [tag.path or "outside of the modules", tag.direction.value]
    facts += [tag.role.value] if tag.role else []
    facts += [tag.slot] if tag.slot else []
    return f"%{node.name} = {op}({', '.join(arguments)})  # {', '.join(facts)}, made by {tag.made_by or 'capture'}"


def _show(value: Any) -> str:
    if isinstance(value, Node):
        return f"%{value.name}"
    if isinstance(value, list | tuple):
        shown = [_show(item) for item in value[:8]]
        return f"[{', '.join([*shown, '...'] if len(value) > 8 else shown)}]"
    return str(value)

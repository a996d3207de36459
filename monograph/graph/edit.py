"""Changes to a graph: make a node, copy one, redirect who reads it. New nodes always get a value and a tag."""

import heapq
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from monograph.compat.capture import copy_fake, fake_mode_of
from monograph.graph.layouts import find_key, find_symbols
from monograph.graph.query import makes_symbols, value_of
from monograph.graph.tags import Tag, set_tag, tag_of


def call_before(graph: Graph, anchor: Node, target: Any, args: tuple[Any, ...], tag: Tag, **kwargs: Any) -> Node:
    """A new call just before `anchor`; its value is worked out from its arguments' shapes."""
    with graph.inserting_before(anchor):
        node = graph.call_function(target, args, kwargs)
    return _finish(graph, node, tag)


def call_after(graph: Graph, anchor: Node, target: Any, args: tuple[Any, ...], tag: Tag, **kwargs: Any) -> Node:
    """A new call just after `anchor`."""
    with graph.inserting_after(anchor):
        node = graph.call_function(target, args, kwargs)
    return _finish(graph, node, tag)


def _finish(graph: Graph, node: Node, tag: Tag) -> Node:
    node.meta["val"] = infer_value(graph, node)
    set_tag(node, tag)
    return node


class CallMaker:
    """Makes many calls; equal calls on values of equal layout are inferred once, because blocks are identical."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._yields: dict[Any, Any] = {}

    def call_before(self, anchor: Node, target: Any, args: tuple[Any, ...], tag: Tag, **kwargs: Any) -> Node:
        """A new call just before `anchor`."""
        with self.graph.inserting_before(anchor):
            node = self.graph.call_function(target, args, kwargs)
        given, named = torch.fx.node.map_arg((node.args, dict(node.kwargs)), value_of)
        has_names = makes_symbols(node) or find_symbols((given, *named.values()))
        key = None if has_names else find_key(target, given, list(named.items()))
        if key is None:
            node.meta["val"] = infer_value(self.graph, node)
        else:
            if key not in self._yields:
                self._yields[key] = infer_value(self.graph, node)
            node.meta["val"] = copy_value(self._yields[key])
        set_tag(node, tag)
        return node


def infer_value(graph: Graph, node: Node) -> Any:
    """What a call yields, computed on shapes alone."""
    args, kwargs = torch.fx.node.map_arg((node.args, dict(node.kwargs)), value_of)
    with fake_mode(graph), torch.no_grad():
        return node.target(*args, **kwargs)  # type: ignore[operator]


def fake_mode(graph: Graph) -> AbstractContextManager[Any]:
    """The mode the graph was captured in, which knows its symbols."""
    first = next(iter(graph.nodes))  # an input
    return fake_mode_of(value_of(first))


def copy_before(anchor: Node, node: Node, mapped: Callable[[Node], Node], *, made_by: str, **facts: Any) -> Node:
    """A second `node` before `anchor`, reading what `mapped` says; with memory, tag and metadata of its own.

    The copied value is made from sizes, not by running the op again: that would invent new symbols for old sizes.
    """
    graph = node.graph
    with graph.inserting_before(anchor):
        copy = graph.node_copy(node, mapped)
    copy.meta = dict(node.meta)
    copy.meta["val"] = copy_value(value_of(node))
    set_tag(copy, replace(tag_of(node), made_by=made_by, **facts))
    return copy


def copy_value(value: Any) -> Any:
    """A value of the same sizes in memory of its own."""
    if isinstance(value, list | tuple):
        return type(value)(copy_value(item) for item in value)
    return copy_fake(value) if isinstance(value, Tensor) else value


def refresh(graph: Graph, changed: Node) -> None:
    """After a node's value got another layout: work out anew whatever that changes further on."""
    for node, value in (find_changes(graph, changed, value_of(changed)) or {}).items():
        node.meta["val"] = value


def can_refresh(node: Node, value: Any) -> bool:
    """Whether everything that reads a node could also read this value in its place."""
    return find_changes(node.graph, node, value) is not None


def find_changes(graph: Graph, changed: Node, value: Any) -> dict[Node, Any] | None:
    """The values that a node's new one leads to, wherever they differ from the old; None when an op refuses."""
    found, todo, seen = {changed: value}, list(changed.users), set(changed.users)
    heapq.heapify(todo)  # in the order of the graph: whatever a node reads is settled before it
    with fake_mode(graph), torch.no_grad():
        while todo:
            node = heapq.heappop(todo)
            if node.op != "call_function":
                continue
            args, kwargs = torch.fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda each: found.get(each, value_of(each))
            )
            try:
                new = node.target(*args, **kwargs)  # type: ignore[operator]
            except RuntimeError:
                return None
            if _layout(new) != _layout(value_of(node)):
                found[node] = new
                for user in node.users.keys() - seen:
                    seen.add(user)
                    heapq.heappush(todo, user)
    return found


def _layout(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride()
    return tuple(map(_layout, value)) if isinstance(value, list | tuple) else value


def redirect(old: Node, new: Node, *, users: Iterable[Node] | None = None) -> None:
    """Let the given readers of `old` (all of them, when none are given) read `new` instead."""
    for user in list(old.users) if users is None else list(users):
        if user is not new:
            user.replace_input_with(old, new)


def erase(nodes: Iterable[Node]) -> None:
    """Remove nodes without readers; readers must come after what they read."""
    for node in reversed(list(nodes)):
        node.graph.erase_node(node)

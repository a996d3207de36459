"""Passes from outside of the package, as a user might write them: some good, most with one mistake each."""

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.fx import Node

from monograph.graph.edit import call_after, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass

ATEN = torch.ops.aten


class Scaling(Pass):
    """Multiply the first matmul of forward by a number, which is what the others here build on.

    Before:  a = mm(x, y)
    After:   a = mm(x, y);  b = mul(a, 1.5)
    Why:     to have something that is easy to see.
    """

    factor = 1.0

    def run(self, graph: StepGraph, facts: Facts) -> str:
        if any(tag_of(node).made_by == self.name() for node in graph.nodes):
            return "done before"
        self.insert(self.find_matmul(graph))
        return "one matmul scaled"

    def find_matmul(self, graph: StepGraph) -> Node:
        return next(node for node in graph.nodes if node.target is ATEN.mm.default and not is_backward(node))

    def insert(self, node: Node) -> None:
        tag = replace(tag_of(node), made_by=self.name())
        new = call_after(node.graph, node, ATEN.mul.Tensor, (node, self.factor), tag)
        redirect(node, new)


class ChangesNumbers(Scaling):
    __doc__ = Scaling.__doc__
    factor = 1.001


class RunsEndlessly(Scaling):
    __doc__ = Scaling.__doc__

    def run(self, graph: StepGraph, facts: Facts) -> str:
        self.insert(self.find_matmul(graph))
        return "one matmul scaled"


class ReadsRank(Scaling):
    __doc__ = Scaling.__doc__

    def run(self, graph: StepGraph, facts: Facts) -> str:
        return super().run(graph, facts) if dist.get_rank() == 0 else "nothing"


class LeavesNoTag(Scaling):
    __doc__ = Scaling.__doc__

    def insert(self, node: Node) -> None:
        with node.graph.inserting_after(node):
            new = node.graph.call_function(ATEN.neg.default, (node,))
        new.meta["val"] = node.meta["val"]
        redirect(node, new)


class NoDocstring(Scaling):
    factor = 1.0


class Rounds(Scaling):
    __doc__ = Scaling.__doc__
    factor = 1.0 + 1e-6
    bitwise = False


class RoundsTooMuch(Scaling):
    __doc__ = Scaling.__doc__
    factor = 1.5
    bitwise = False


class Idle(Scaling):
    __doc__ = Scaling.__doc__

    def run(self, graph: StepGraph, facts: Facts) -> str:
        return "nothing found"


class Crashes(Scaling):
    __doc__ = Scaling.__doc__

    def run(self, graph: StepGraph, facts: Facts) -> str:
        raise KeyError("no such node")


class WithOptions(Scaling):
    __doc__ = Scaling.__doc__
    after = ("recompute",)

    @dataclass(kw_only=True, slots=True)
    class Config(Pass.Config):
        """Options of WithOptions."""

        factor: float = 1.0
        """What to multiply with."""
        words: tuple[str, ...] = ()
        """Not used."""

    @property
    def factor(self) -> float:
        return self.config.factor


class RemoveNoOps(Scaling):
    __doc__ = Scaling.__doc__


class On(Scaling):
    __doc__ = Scaling.__doc__


class NeedsArgument(Scaling):
    __doc__ = Scaling.__doc__

    @dataclass(kw_only=True, slots=True)
    class Config(Pass.Config):
        """Options of NeedsArgument."""

        factor: float
        """Without a default."""


class NotAPass:
    """Not a pass at all."""


class HasNoRun(Pass):
    __doc__ = Scaling.__doc__


def declare(name: str, *, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> type[Pass]:
    """A class of this module that asks for a place; it can be found by name afterwards."""
    kind = type(
        name, (Scaling,), {"__doc__": Scaling.__doc__, "__module__": __name__, "before": before, "after": after}
    )
    globals()[name] = kind
    return kind

"""The whole step as one graph: forward, loss and backward, with named inputs and outputs."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from monograph.graph.signature import InputSpec, OutputSpec
from monograph.graph.text import TextPart, join_texts, render_inner, render_parts

Names = Mapping[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True)
class CommunicationInvariants:
    """What capture found and every pass has to keep; a group stands for all groups over the same ranks."""

    gathers: Names
    """Slot -> the groups it was gathered from where modules compute with it."""
    readers: Names
    """Slot -> the paths of those modules."""
    sums: Names
    """Slot -> the groups its gradient is summed over."""
    sources: Names
    """Slot -> the paths of the modules its gradient comes from."""
    dtypes: tuple[torch.dtype, ...]
    """Of the outputs."""
    collectives: Mapping[tuple[str, str, str, str], int]
    """(path, direction, op, group) -> how often, for all collectives but those of parameters and gradients."""
    coordinate_readers: frozenset[str]
    """The paths of the modules that read their rank's coordinates in the mesh."""


@dataclass
class StepGraph:
    """A captured step. Passes change `module.graph`; inputs and outputs keep their order."""

    module: GraphModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]
    properties: CommunicationInvariants | None = None
    """None for graphs that were not captured."""
    compiled: int = 0
    """How many parts a compiler was given."""
    max_size: int | None = None
    """The largest size that data may decide, in a graph that was read from a file; None: not bounded."""

    @property
    def nodes(self) -> list[Node]:
        """All nodes in execution order."""
        return list(self.module.graph.nodes)

    @property
    def placeholders(self) -> list[Node]:
        """The inputs' nodes, in the order of `inputs`."""
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def results(self) -> list[Node | None]:
        """The outputs' nodes, in the order of `outputs`."""
        return list(self.module.graph.output_node().args[0])  # type: ignore[arg-type]

    def text(self, *, folded: bool = True) -> str:
        """The graph as a person reads it; the same on every rank and in every run."""
        return join_texts(self.text_parts(), self.inner_texts(), folded=folded)

    def text_parts(self) -> list[TextPart]:
        """The blocks of the text in order; `text` joins them."""
        names = {node: spec.name for node, spec in zip(self.placeholders, self.inputs, strict=True)}
        return render_parts(self.module.graph, names)

    def inner_texts(self) -> list[str]:
        """The texts of the graphs that ops of the step run."""
        return [render_inner(name, module.graph) for name, module in self.inner_graphs()]

    def inner_graphs(self) -> list[tuple[str, GraphModule]]:
        """The graphs that ops of the step run, by name, in the order in which they are read."""
        read = dict.fromkeys(str(node.target) for node in self.module.graph.nodes if node.op == "get_attr")
        found = [(name, getattr(self.module, name, None)) for name in read]
        return [(name, value) for name, value in found if isinstance(value, GraphModule)]

    def digest(self) -> str:
        """Sixteen bytes that are equal exactly when the unfolded texts are."""
        return hashlib.sha256(self.text(folded=False).encode()).hexdigest()[:32]


def copy_graph(graph: StepGraph) -> StepGraph:
    """A graph of its own with the same node names: passes that go on with the original leave it as it is."""
    inside = Graph()
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        copies[node] = inside.node_copy(node, copies.__getitem__)
        assert copies[node].name == node.name, "names tell which nodes belong together"
    return StepGraph(GraphModule(graph.module, inside), graph.inputs, graph.outputs, graph.properties, graph.compiled)

"""The whole step as one graph: forward, loss and backward, with named inputs and outputs."""

import hashlib
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from monograph.graph.signature import InputSpec, OutputSpec
from monograph.graph.text import render


@dataclass
class StepGraph:
    """A captured step. Passes change `module.graph`; inputs and outputs keep their order."""

    module: GraphModule
    inputs: tuple[InputSpec, ...]
    outputs: tuple[OutputSpec, ...]

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
        names = {node: spec.name for node, spec in zip(self.placeholders, self.inputs, strict=True)}
        return render(self.module.graph, names, folded=folded)

    def digest(self) -> str:
        """Sixteen bytes that are equal exactly when the unfolded texts are."""
        return hashlib.sha256(self.text(folded=False).encode()).hexdigest()[:32]

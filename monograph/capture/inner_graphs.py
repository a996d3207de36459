"""Graphs inside of ops (FlexAttention's score and mask functions): equal ones are kept once, for all ops that run them.

Every call of an op brings graphs of its own, under names that count calls. Kept once, they have the same name in all
blocks, so that identical blocks read the same and can be copied.
"""

from torch.fx import GraphModule, Node

from monograph.annotate import REGION
from monograph.graph.text import render_inner


def share_inner_graphs(module: GraphModule) -> None:
    """Let all ops that run equal graphs read one of them, at the start of the step."""
    readers = [node for node in module.graph.nodes if node.op == "get_attr" and is_graph(module, node)]
    if not readers:
        return
    first = next(node for node in module.graph.nodes if node.op != "placeholder")
    shared: dict[str, Node] = {}
    for node in readers:
        inner = getattr(module, str(node.target))
        text = render_inner("", inner.graph)
        if text not in shared:
            name = f"inner_graph_{len(shared)}"
            module.add_module(name, inner)
            with module.graph.inserting_before(first):
                shared[text] = module.graph.get_attr(name)
            region = (node.meta.get("custom") or {}).get(REGION)
            shared[text].meta["custom"] = {REGION: region} if region else {}
        node.replace_all_uses_with(shared[text])
        module.graph.erase_node(node)
    for node in readers:
        if hasattr(module, str(node.target)):
            delattr(module, str(node.target))


def is_graph(module: GraphModule, node: Node) -> bool:
    """Whether a node reads a graph, rather than a tensor."""
    return isinstance(getattr(module, str(node.target), None), GraphModule)

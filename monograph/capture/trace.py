"""Tracing: run the step once on fake tensors, and keep every op with the facts that were known when it ran."""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from monograph.annotate import ATTENTION, CHUNK, DIRECTION, PATH, REGION, ROLE, SLOT, Direction, Role, annotate_path
from monograph.capture.block_repeats import BlockRepeat
from monograph.capture.functionalize import functionalize
from monograph.capture.inner_graphs import share_inner_graphs
from monograph.capture.replicate import replicate_skipped_blocks
from monograph.compat.capture import fake_tensors, is_gradient_sum, trace_function
from monograph.compat.ops import annotations_restored
from monograph.graph.inputs import StepInputs
from monograph.graph.invariants import find_communication_invariants, mark_gradients
from monograph.graph.signature import PARAMETERS, InputKind, InputSpec, OutputKind, OutputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag, tag_of
from monograph.graph.verify_values import trust_values
from monograph.models.model import Model, find_unit


def trace(
    step: Callable[..., Any],
    model: Model,
    inputs: StepInputs,
    *,
    has_sources: bool = False,
    mode: AbstractContextManager[Any] | None = None,
    repeats: Sequence[BlockRepeat] = (),
) -> StepGraph:
    """The step as a graph; `model` is only asked for the names of its modules.

    With `has_sources` nodes know the line of model code they come from, which takes longer. Traces in one `mode`, that
    of another trace, can lend each other values: unbacked sizes have different names in each. A step that skips
    most blocks of some `repeats` is unfolded to one that has them all; `BlocksDiffer` when that cannot be done.
    """
    specs = inputs.specs()
    outputs: list[OutputSpec] = []

    def flat_step(*tensors: Tensor) -> list[Tensor]:
        found = step(**_group(specs, tensors))
        outputs[:] = [
            OutputSpec(kind=OutputKind.LOSS),
            *(OutputSpec(kind=OutputKind.GRADIENT, name=name) for name in found.gradients),
            *(OutputSpec(kind=OutputKind.METRIC, name=name) for name in found.metrics),
            *(OutputSpec(kind=OutputKind.PROBED, name=name) for name in found.probed),
            *(OutputSpec(kind=OutputKind.CARRY, name=name) for name in found.carry),
            *(OutputSpec(kind=OutputKind.CARRY_GRADIENT, name=name) for name in found.carry_gradients),
        ]
        named = (found.gradients, found.metrics, found.probed, found.carry, found.carry_gradients)
        return [found.loss, *(value for values in named for value in values.values())]

    with mode or fake_tensors() as fake, paths_recorded(model):
        tensors = [
            torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device).requires_grad_(
                spec.kind is InputKind.STATE or (spec.kind is InputKind.CARRY and spec.dtype.is_floating_point)
            )
            for spec in specs
        ]
        module = trace_function(flat_step, tensors, fake, has_sources=has_sources)
    functionalize(module)
    for each in (module, *(child for child in module.children() if isinstance(child, torch.fx.GraphModule))):
        drop_device_numbers(each.graph)
    share_inner_graphs(module)
    drop_missing(module.graph)
    tag_nodes(module.graph, number_units(model))
    if repeats:
        outputs = replicate_outputs(module, specs, outputs, repeats)
    graph = StepGraph(module=module, inputs=specs, outputs=tuple(outputs))
    tag_inner_nodes(graph)
    trust_values(graph)
    mark_gradients(graph)
    graph.properties = find_communication_invariants(graph)
    return graph


def replicate_outputs(
    module: torch.fx.GraphModule,
    specs: Sequence[InputSpec],
    outputs: Sequence[OutputSpec],
    repeats: Sequence[BlockRepeat],
) -> list[OutputSpec]:
    """Unfold the graph; its outputs are then those of a step with all blocks."""
    inside = module.graph
    names = {
        spec.name: node
        for spec, node in zip(specs, inside.find_nodes(op="placeholder"), strict=True)
        if spec.kind in (*PARAMETERS, InputKind.BUFFER)
    }
    output = inside.output_node()
    pairs = list(zip(outputs, output.args[0], strict=True))  # type: ignore[arg-type]
    gradients = {spec.name: node for spec, node in pairs if spec.kind is OutputKind.GRADIENT}
    has_gradients = bool(gradients)
    replicate_skipped_blocks(inside, names, gradients, repeats)
    slots = [spec.name for spec in specs if spec.kind is InputKind.STATE] if has_gradients else []
    found = [(OutputSpec(kind=OutputKind.GRADIENT, name=slot), gradients[slot]) for slot in slots]
    others = [pair for pair in pairs if pair[0].kind is not OutputKind.GRADIENT]
    ordered = [*others[:1], *found, *others[1:]]  # the loss comes first
    output.args = ([node for _, node in ordered],)
    return [spec for spec, _ in ordered]


def drop_missing(graph: torch.fx.Graph) -> None:
    """Forget results an op did not compute: attention without a bias has no gradient of one."""
    for node in list(graph.nodes):
        if node.target is operator.getitem and node.meta.get("val") is None and not node.users:
            graph.erase_node(node)


def drop_device_numbers(graph: torch.fx.Graph) -> None:
    """`cuda:3` -> `cuda`: each rank runs the graph on its own device."""

    def without_number(value: Any) -> Any:
        return torch.device(value.type) if isinstance(value, torch.device) else value

    for node in graph.nodes:
        if any(isinstance(value, torch.device) and value.index is not None for value in _arguments(node)):
            node.args = tuple(without_number(value) for value in node.args)
            node.kwargs = {name: without_number(value) for name, value in node.kwargs.items()}


def _arguments(node: torch.fx.Node) -> tuple[Any, ...]:
    return (*node.args, *node.kwargs.values())


def _group(specs: tuple[InputSpec, ...], tensors: tuple[Tensor, ...]) -> dict[str, Any]:
    pairs = list(zip(specs, tensors, strict=True))
    by_kind = {kind: {spec.name: value for spec, value in pairs if spec.kind is kind} for kind in InputKind}
    carried = {"carry": by_kind[InputKind.CARRY], "carry_gradients": by_kind[InputKind.CARRY_GRADIENT]}
    return (carried if any(carried.values()) else {}) | {
        "state": by_kind[InputKind.STATE] | by_kind[InputKind.FROZEN],
        "buffers": by_kind[InputKind.BUFFER],
        "batch": by_kind[InputKind.BATCH],
        "coords": by_kind[InputKind.COORDS]["coords"],
        "scalars": by_kind[InputKind.SCALAR],
    }


@contextmanager
def paths_recorded(model: nn.Module) -> Iterator[None]:
    """While this lasts, ops know the path of the innermost module that runs them.

    A module that raises is not followed by its hook: what it leaves open is closed here. Left to the garbage collector,
    it would be closed in the middle of the next capture, whose ops would lose their paths.
    """
    running = ExitStack()
    open_paths: list[tuple[str, ExitStack]] = []

    def enter(path: str) -> None:
        scope = ExitStack()
        scope.enter_context(annotate_path(path))
        open_paths.append((path, scope))

    with annotations_restored(), running:
        for path, module in model.named_modules():
            if path:
                before = module.register_forward_pre_hook(lambda _m, _a, path=path: enter(path), prepend=True)
                after = module.register_forward_hook(lambda _m, _a, _r: open_paths.pop()[1].close())
                running.callback(before.remove)
                running.callback(after.remove)
        try:
            yield
        except Exception as error:
            if open_paths:
                error.add_note(f"in {open_paths[-1][0]}")
            raise
        finally:
            for _, scope in reversed(open_paths):
                with suppress(KeyError):  # one around it was closed before it, and took the annotations along
                    scope.close()


_UNDONE = {
    Role.PARAM_ALL_GATHER: Role.GRAD_REDUCE_SCATTER,
    Role.SEQUENCE_ALL_GATHER: Role.SEQUENCE_REDUCE_SCATTER,
    Role.SEQUENCE_REDUCE_SCATTER: Role.SEQUENCE_ALL_GATHER,
}
"""What undoes what: the role of a forward node -> the role of the backward nodes that inherit from it."""


_STATED = (Role.CONTEXT_ALL_GATHER, Role.CONTEXT_REDUCE_SCATTER)
"""Roles that backward states where it has them: most of what undoes a node with such a role does something else."""


_INHERITED = (PATH, REGION, SLOT, CHUNK, ATTENTION)
"""What a backward node has of the forward node that it undoes, besides the role."""


def find_role(facts: Mapping[str, Any], direction: Direction) -> Role | None:
    """A node's role; backward nodes have the one that undoes their forward node's."""
    if ROLE not in facts:
        return None
    role = Role(facts[ROLE])
    return _UNDONE.get(role, role) if direction is Direction.BACKWARD else role


def find_unit_of_sum(node: torch.fx.Node) -> str:
    """A sum of gradients undoes no node; it belongs to the block whose gradient came last."""
    tag = tag_of(max(node.all_input_nodes))
    return "" if tag.block is None else tag.unit


def find_chunk_of_sum(node: torch.fx.Node) -> dict[str, int]:
    """A sum of gradients that all come from one chunk belongs to it."""
    chunks = {tag_of(each).chunk for each in node.all_input_nodes}
    chunk = chunks.pop()
    return {} if chunks or chunk is None else {CHUNK: chunk}


def tag_inner_nodes(graph: StepGraph) -> None:
    """Nodes inside of a higher-order op (FlexAttention) get the tag of the op."""
    readers = {str(node.target): node for node in graph.nodes if node.op == "get_attr"}
    for name, module in graph.inner_graphs():
        for node in module.graph.nodes:
            set_tag(node, tag_of(readers[name]))


def number_units(model: Model) -> dict[str, int | None]:
    """The units of a model by path, with the number of each block among the blocks."""
    numbers = itertools.count()
    return {unit.path: next(numbers) if unit.is_block else None for unit in model.units()}


def tag_nodes(graph: torch.fx.Graph, units: Mapping[str, int | None]) -> None:
    """Turn what tracing left on the nodes into tags; backward nodes inherit from the forward node they undo."""
    owners: dict[int, dict[str, Any]] = {}
    last = -1
    for node in graph.nodes:
        facts = node.meta.get("custom") or {}
        if facts.get(DIRECTION) != Direction.BACKWARD and node.op == "call_function":
            last = max(last, node.meta.get("seq_nr", -1))
            owners.setdefault(node.meta.get("seq_nr", -1), facts)
    for node in graph.nodes:
        facts = dict(node.meta.get("custom") or {})
        direction = Direction(facts.get(DIRECTION, Direction.FORWARD))
        if direction is Direction.BACKWARD and is_gradient_sum(node, last):
            facts[PATH] = find_unit_of_sum(node)
            facts |= find_chunk_of_sum(node)
        elif direction is Direction.BACKWARD:
            inherited = owners.get(node.meta.get("seq_nr", -1), {})
            keys = _INHERITED if inherited.get(ROLE) in _STATED else (*_INHERITED, ROLE)
            facts = {key: inherited[key] for key in keys if key in inherited} | facts
        role = find_role(facts, direction)
        unit = find_unit(facts.get(SLOT) or facts.get(PATH, ""), units)
        set_tag(
            node,
            Tag(
                path=facts.get(PATH, ""),
                unit=unit,
                block=units.get(unit),
                direction=direction,
                role=role,
                slot=facts.get(SLOT, ""),
                region=facts.get(REGION, ""),
                attention=facts.get(ATTENTION, ""),
                chunk=int(facts[CHUNK]) if CHUNK in facts else None,
            ),
        )

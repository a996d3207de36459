"""Captures as they come, before any pass, and copies of them to break."""

import copy
import functools

import torch
from torch import nn

from monograph.annotate import Direction, annotate_direction
from monograph.axes import Axis, Group
from monograph.capture.step import StepOutputs
from monograph.capture.trace import trace
from monograph.compat.capture import mark_backward
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph
from monograph.graph.verify_values import trust_values
from monograph.models.model import Model, Unit
from monograph.models.parallel_plan import ShardedDim
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import Slot
from monograph.parallel.shard import gather_parameter
from monograph.recipes.catalog import load_recipe
from tests.kit.capture import prepare

CPU = torch.device("cpu")
SPREAD = Mesh(dp_shard=2, tp=2, ep=2)


@functools.cache
def capture_recipe(recipe, mesh, *, compute="float32"):
    """A recipe's step on a fake mesh, and the facts about that mesh; shared by all tests, so break copies only."""
    layers = 2 if "deepseek" in recipe else 1  # its first block is dense
    config = load_recipe(recipe)
    config = config.replace(
        model=config.model.replace(n_layers=layers),
        training=config.training.replace(compute_dtype=compute),
        parallelism=config.parallelism.replace(fsdp="graph"),
        compile=config.compile.replace(mode="graph"),
    )
    tokens = torch.zeros(2, 32, dtype=torch.int64)
    batch = {"tokens": tokens, "labels": tokens, "positions": tokens, "documents": tokens}
    with fake_groups(mesh, 0, CPU) as groups:
        prepared = prepare(config, groups, batch)
        slots = [slot.name for slot in prepared.source.table]
        return prepared.capture(repeats=[]), facts_of(mesh, slots)


def facts_of(mesh, slots=()):
    sizes = {group.value: mesh.group_size(group) for group in Group}
    return Facts(degrees={axis: mesh.degree(axis) for axis in Axis}, group_sizes=sizes, slots=tuple(slots))


class Shift(nn.Module):
    """Adds this rank's place on the tp axis."""

    def forward(self, x, coords):
        return x + coords[4]


class Twins(Model):
    """Two matrices of one shape: the smallest model in which something can be mixed up."""

    def __init__(self):
        super().__init__()
        self.shift = Shift()
        self.a = nn.Linear(4, 4, bias=False)
        self.b = nn.Linear(4, 4, bias=False)

    def units(self):
        return [Unit("shift"), Unit("a"), Unit("b")]

    def forward(self, x, coords):
        return self.b(self.a(self.shift(x, coords)))


def capture_chunk_nodes(mesh=SPREAD):
    """A step of some twenty nodes with parameters sharded over fsdp and replicated over tp."""
    model = Twins()
    slots = [
        Slot(
            names=(name,),
            shape=(4, 4),
            cuts=(),
            shard=ShardedDim(axis=Axis.FSDP, dim=0),
            unit=name[0],
            order=order,
            mesh=mesh,
        )
        for order, name in enumerate(("a.weight", "b.weight"))
    ]

    def step(state, buffers, batch, coords, scalars):
        pieces = {slot.name: gather_parameter(state[slot.name], slot, torch.float32, torch.float32) for slot in slots}
        loss = torch.func.functional_call(model, pieces, (batch["x"], coords)).sum()
        return StepOutputs(loss.detach(), take_gradients(loss, state), {})

    with fake_groups(mesh, 0, CPU) as groups:
        state = {slot.name: torch.zeros(slot.local_shape) for slot in slots}
        inputs = StepInputs(state, {}, {"x": torch.zeros(2, 4)}, groups.coords(), {})
        return trace(step, model, inputs), facts_of(mesh, state)


def take_gradients(loss, state):
    mark_backward(loss)
    with annotate_direction(Direction.BACKWARD):
        return dict(zip(state, torch.autograd.grad(loss, list(state.values())), strict=True))


def copy_graph(graph):
    """A graph to break; its values are as trusted as the original's, so that only what is broken is run again.

    What holds the nodes is a plain module: generating code for a graph that never runs would take most of the time.
    """
    holder = nn.Module()
    holder.graph = copy.deepcopy(graph.module.graph)
    copied = StepGraph(holder, graph.inputs, graph.outputs, graph.properties)
    trust_values(copied)
    return copied

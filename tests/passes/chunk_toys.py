"""Models of a few nodes to cut into chunks, captured whole and for one chunk."""

import torch
from torch import nn

from monograph.axes import Axis, Group
from monograph.capture.chunks import capture_chunk_nodes
from monograph.capture.step import StepOutputs
from monograph.capture.trace import trace
from monograph.compat.ops import all_reduce
from monograph.execute.facts import describe_chunks
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.models.model import Model, blocks_of
from monograph.models.parallel_plan import ShardedDim
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.parallel.param_table import Slot
from monograph.parallel.shard import gather_parameter
from tests.graph.captures import CPU, take_gradients


class Plain(nn.Module):
    """y = relu(x w^T)"""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.empty(4, 4))

    def forward(self, x):
        return torch.relu(nn.functional.linear(x, self.w))


class Looping(Plain):
    """Works in pieces of two rows, so that a chunk has fewer ops."""

    def forward(self, x):
        return torch.cat([super(Looping, self).forward(rows) for rows in x.split(2)])


class Leaking(Plain):
    """Remembers a sum over all rows, which is read outside."""

    def __init__(self):
        super().__init__()
        self.seen = None

    def forward(self, x):
        self.seen = x.sum(0)
        return super().forward(x)


class Noisy(Plain):
    """Draws random numbers, which chunks would draw in another order."""

    def forward(self, x):
        return super().forward(x + torch.rand_like(x))


class Talking(Plain):
    """Adds up something over ranks that nobody said may be added up for a part of the rows."""

    def forward(self, x):
        return super().forward(all_reduce(x, "sum", Group.BATCH.value))


class Crossing(Plain):
    """Compares all rows with all rows of a table that comes from outside: cut in both dims."""

    def forward(self, x):
        return super().forward(self.table @ x) if hasattr(self, "table") else super().forward(x)


class Stack(Model):
    def __init__(self, layer, count):
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(count))

    def units(self):
        return blocks_of("layers", self.layers)

    def forward(self, x):
        for layer in self.layers:
            if isinstance(layer, Crossing):
                layer.table = x @ x.T
            x = layer(x)
        return x + sum(layer.seen for layer in self.layers if getattr(layer, "seen", None) is not None)


def capture_stack(layer=Plain, count=1, *, rows=8, mesh=None, reduce_dtype=torch.float32, **overlap):
    """The step of a stack of layers on a fake mesh, its chunk nodes, and what the pass may know."""
    mesh = mesh or Mesh(dp_shard=2)
    config = ExpertOverlapConfig(**{"strategy": "graph", **overlap})
    model = Stack(layer, count)
    names = [f"layers.{number}.w" for number in range(count)]
    slots = [
        Slot(
            names=(n,),
            shape=(4, 4),
            cuts=(),
            shard=ShardedDim(axis=Axis.FSDP, dim=0),
            unit=n[:8],
            order=index,
            mesh=mesh,
        )
        for index, n in enumerate(names)
    ]

    def step(state, buffers, batch, coords, scalars):
        pieces = {slot.name: gather_parameter(state[slot.name], slot, torch.float32, reduce_dtype) for slot in slots}
        loss = torch.func.functional_call(model, pieces, (batch["x"],)).sum()
        return StepOutputs(loss.detach(), take_gradients(loss, state), {})

    with fake_groups(mesh, 0, CPU) as groups:
        state = {slot.name: torch.zeros(slot.local_shape) for slot in slots}
        inputs = StepInputs(state, {}, {"x": torch.zeros(rows, 4)}, groups.coords(), {})
        graph = trace(step, model, inputs)
        roots = [path for path, _ in model.named_modules() if config.selects(path)]
        capture_chunk_nodes(graph, step, model, inputs, config, roots)
    sizes = {group.value: mesh.group_size(group) for group in Group}
    degrees = {axis: mesh.degree(axis) for axis in Axis}
    facts = Facts(
        degrees=degrees,
        group_sizes=sizes,
        slots=tuple(names),
        chunking=describe_chunks(config),
        reduce_dtype=reduce_dtype,
    )
    return graph, facts

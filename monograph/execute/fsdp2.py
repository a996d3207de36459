"""The step with torch's own FSDP2: what per-layer compile needs, and what eager mode does where it is asked for.

Its numbers are those of explicit shards within rounding: it adds the gradients of tied weights, and of values that two
of its modules read, before it sums over ranks; and gloo adds the terms of three ranks or more in an order that follows
from a value's position in the unit's buffer (parallel/ordered_sums.py serves the logical groups only).

FSDP2 sees the pieces that tensor and expert parallelism leave to a rank, and shards those over the fsdp (for experts:
efsdp) axis. Everything outside of it works on the plain local tensors behind its parameters.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from monograph.axes import Axis, Group
from monograph.compat.fsdp2 import has_parameter_meshes, placements_on, release_groups
from monograph.execute.activation_checkpoint import find_runner
from monograph.execute.base import ModuleStep, StepSettings
from monograph.execute.gradients import add_to_sum, allow_any_gradient, find_sum_dtype
from monograph.execute.layer import compile_layers
from monograph.models.model import Model, StepOutput, find_unit
from monograph.parallel.collectives import all_reduce_over
from monograph.parallel.groups import Groups
from monograph.parallel.init_shards import fill_shards
from monograph.parallel.param_table import ParamTable


class Fsdp2Step(ModuleStep):
    """Eager execution with `fully_shard` around every unit."""

    def __init__(self, model: Model, table: ParamTable, groups: Groups, settings: StepSettings) -> None:
        super().__init__(model, table, groups, seed=settings.seed)
        # before fully_shard wraps the blocks
        self.backend, self.call = compile_layers(model, settings.compile, find_runner(settings.activations.mode))
        put_pieces(model, table, settings.dtype)
        policy = MixedPrecisionPolicy(
            param_dtype=settings.compute_dtype, reduce_dtype=settings.reduce_dtype, cast_forward_inputs=False
        )
        apply_fully_shard(model, table, groups, policy, reshard=settings.reshard)
        materialize_shards(model, groups.device)
        self.sharded = {table[name].name: parameter for name, parameter in model.named_parameters()}
        self.parameters = {slot.name: _local(self.sharded[slot.name]) for slot in table}
        fill_shards(self.parameters, table, settings.init_specs, seed=settings.seed, rank=groups.rank)
        self.reduce_dtype = settings.reduce_dtype
        for local in self.parameters.values():
            allow_any_gradient(local, find_sum_dtype(local, settings.reduce_dtype))

    def forward(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> StepOutput:
        return self.model(**inputs, **scalars, call=self.call)

    def backward(self, objective: Tensor) -> None:
        objective.backward()
        for slot in self.table:
            parameter, local = self.sharded[slot.name], self.parameters[slot.name]
            if parameter.grad is None:
                continue
            gradient = _local(parameter.grad)
            parameter.grad = None
            if slot.is_replicated_over_tp:
                gradient = all_reduce_over(gradient, Group.TP_GRADS)
            dtype = find_sum_dtype(local, self.reduce_dtype)
            local.grad = gradient if local.grad is None else add_to_sum(local.grad, gradient, dtype)


def put_pieces(model: nn.Module, table: ParamTable, dtype: torch.dtype) -> None:
    """Give the model parameters of the shapes one rank computes with, on the meta device; ties stay ties."""
    made: dict[str, nn.Parameter] = {}
    for slot in table:
        piece = torch.empty(slot.piece_shape, dtype=dtype, device="meta")
        made[slot.name] = nn.Parameter(piece, requires_grad=not slot.is_frozen)
        for name in slot.names:
            path, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(path), leaf, made[slot.name])


def apply_fully_shard(
    model: Model, table: ParamTable, groups: Groups, policy: MixedPrecisionPolicy, *, reshard: bool
) -> None:
    """Wrap every unit and the whole. Routed experts are wrapped with their block, on their own mesh.

    With a torch that cannot do that (2.11), experts whose mesh differs are wrapped by themselves.
    """
    dense, experts = build_device_mesh(groups, Group.FSDP_GATHER), build_device_mesh(groups, Group.EFSDP_GATHER)
    own_mesh = has_own_expert_mesh(groups)
    on_expert_mesh = placements_on(experts) if own_mesh and has_parameter_meshes() else Shard
    routed = {id(model.get_parameter(slot.name)): slot.shard.dim for slot in table if slot.is_expert}

    def place(parameter: nn.Parameter) -> Any:
        dim = routed.get(id(parameter))
        if dim is None:
            return None
        return on_expert_mesh(dim)

    def wrap(module: nn.Module, mesh: DeviceMesh, *, frees: bool = reshard) -> None:
        wrapped = fully_shard(
            module, mesh=mesh, mp_policy=policy, reshard_after_forward=frees, shard_placement_fn=place
        )
        wrapped.set_gradient_divide_factor(1.0)  # the loss is divided by the global token count already
        wrapped.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum

    if own_mesh and not has_parameter_meshes():
        for path in dict.fromkeys(slot.name.rpartition(".")[0] for slot in table if slot.is_expert):
            wrap(model.get_submodule(path), experts)
    units = model.unit_modules()
    tied = {find_unit(name, units) for slot in table if len(slot.names) > 1 for name in slot.names}
    blocks = model.blocks()
    for path, unit in [*blocks.items(), *(each for each in units.items() if each[0] not in blocks)]:
        if path not in tied:  # tied weights must be one group: they stay with the whole
            wrap(unit, dense)
    wrap(model, dense, frees=False)


def has_own_expert_mesh(groups: Groups) -> bool:
    """Whether routed experts are shared by other ranks than the rest of the model."""
    mesh, rank = groups.mesh, groups.rank
    return mesh.members(Group.EFSDP_GATHER, rank) != mesh.members(Group.FSDP_GATHER, rank)


def build_device_mesh(groups: Groups, shard: Group) -> DeviceMesh:
    """FSDP2's mesh over groups that exist already: replicas by shards, or shards alone without replicas."""
    kind = groups.device.type
    if groups.mesh.dp_replicate == 1:
        mesh = DeviceMesh.from_group(groups.process_group(shard), kind, mesh_dim_names=(shard.value,))
    else:
        replicas = groups.mesh.members(Group.DP_REPLICATE, groups.rank)
        ranks = torch.tensor([groups.mesh.members(shard, replica) for replica in replicas])
        native = [groups.process_group(Group.DP_REPLICATE), groups.process_group(shard)]
        mesh = DeviceMesh.from_group(native, kind, mesh=ranks, mesh_dim_names=(Axis.DP_REPLICATE.value, shard.value))
    groups.at_close(lambda: release_groups(mesh))
    return mesh


@torch.no_grad()
def materialize_shards(model: nn.Module, device: torch.device) -> None:
    """Give the sharded parameters memory; buffers have theirs already."""
    made: dict[int, nn.Parameter] = {}  # by the parameter it replaces: ties stay ties
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in made:
                empty = torch.empty_like(parameter, device=device)
                made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
            setattr(module, name, made[id(parameter)])
    model.to(device)  # here FSDP2 moves uneven shards into padded memory; later it would leave us with the old tensors


def _local(value: Tensor) -> Tensor:
    """The plain tensor behind a sharded one, sharing its storage."""
    with torch.no_grad():
        return value.to_local() if isinstance(value, DTensor) else value

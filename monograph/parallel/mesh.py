"""The device mesh as plain numbers: who sits where, and who communicates with whom. Loads without torch.

Ranks are laid out with pp outermost and tp innermost, so that the chattiest neighbours are closest. The experts' view
cuts the same dp_shard x cp x tp ranks into efsdp x ep x etp, again innermost last.
"""

from dataclasses import dataclass
from itertools import product

from monograph.axes import Axis, Group
from monograph.errors import ConfigError
from monograph.parallel.config import ContextGather, ContextMethod, ParallelismConfig


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The degrees of all axes; a mesh of ones is one device."""

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    tp: int = 1
    ep: int = 1
    etp: int = 1
    cp_method: ContextMethod = "all_gather"
    """How attention gets tokens of other cp ranks, which decides what part of a sequence each has."""
    cp_gather: ContextGather = "auto"
    """What latent attention gathers; `auto` until it is decided for a machine (context_gather.py)."""

    @property
    def fsdp(self) -> int:
        """Ranks that share one copy of the dense parameters."""
        return self.dp_shard * self.cp

    @property
    def shards(self) -> int:
        """Ranks that hold one whole copy of the model between them."""
        return self.fsdp * self.tp

    @property
    def efsdp(self) -> int:
        """Ranks that share one copy of an expert's shard."""
        return self.shards // (self.ep * self.etp)

    @property
    def data_parts(self) -> int:
        """Parts that a global batch is divided into."""
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.pp * self.dp_replicate * self.shards

    def degree(self, axis: Axis) -> int:
        """How many ranks lie along an axis."""
        return int(getattr(self, axis.value))

    def stride(self, axis: Axis) -> int:
        """How far apart in rank two neighbours along an axis are."""
        strides = {
            Axis.PP: self.dp_replicate * self.shards,
            Axis.DP_REPLICATE: self.shards,
            Axis.FSDP: self.tp,
            Axis.DP_SHARD: self.tp * self.cp,
            Axis.CP: self.tp,
            Axis.TP: 1,
            Axis.EFSDP: self.ep * self.etp,
            Axis.EP: self.etp,
            Axis.ETP: 1,
        }
        return strides[axis]

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Where a rank lies on an axis."""
        return rank // self.stride(axis) % self.degree(axis)

    def data_part(self, rank: int) -> int:
        """Which part of a global batch a rank reads; tp, cp and expert peers read the same one."""
        return self.coordinate(rank, Axis.DP_REPLICATE) * self.dp_shard + self.coordinate(rank, Axis.DP_SHARD)

    def members(self, group: Group, rank: int) -> tuple[int, ...]:
        """The ranks of the group of this kind that `rank` belongs to, in group order."""
        fixed = [(self.stride(axis), self.degree(axis), self.coordinate(rank, axis)) for axis in _FIXED[group]]
        return tuple(
            other
            for other in range(self.world_size)
            if all(other // stride % degree == index for stride, degree, index in fixed)
        )

    def group_size(self, group: Group) -> int:
        """How many ranks a group of this kind has."""
        sizes = {
            Group.SEQUENCE: self.cp * self.tp,
            Group.BATCH: self.dp_replicate * self.fsdp,
            Group.SHARDS: self.shards,
            Group.STAGE: self.dp_replicate * self.shards,
            Group.WORLD: self.world_size,
        }
        return sizes[group] if group in sizes else self.degree(_ALONG[group])

    def group_span(self, group: Group) -> int:
        """Ranks from the first to the last of rank 0's group of this kind, those between them included."""
        moving = {
            Group.SEQUENCE: (Axis.CP, Axis.TP),
            Group.BATCH: (Axis.DP_REPLICATE, Axis.FSDP),
            Group.SHARDS: (Axis.FSDP, Axis.TP),
            Group.STAGE: (Axis.DP_REPLICATE, Axis.FSDP, Axis.TP),
        }
        axes = _DENSE_VIEW if group is Group.WORLD else moving.get(group) or (_ALONG[group],)
        return 1 + sum((self.degree(axis) - 1) * self.stride(axis) for axis in axes)


_ALONG = {
    Group.FSDP_GATHER: Axis.FSDP,
    Group.FSDP_SCATTER: Axis.FSDP,
    Group.EFSDP_GATHER: Axis.EFSDP,
    Group.EFSDP_SCATTER: Axis.EFSDP,
    Group.DP_REPLICATE: Axis.DP_REPLICATE,
    Group.TP: Axis.TP,
    Group.TP_GRADS: Axis.TP,
    Group.EP: Axis.EP,
    Group.EP_COUNTS: Axis.EP,
    Group.EP_DISPATCH: Axis.EP,
    Group.ETP: Axis.ETP,
    Group.CP: Axis.CP,
    Group.PP: Axis.PP,
    Group.PP_UP: Axis.PP,
    Group.PP_DOWN: Axis.PP,
}
"""The axis each group runs along."""

_DENSE_VIEW = (Axis.PP, Axis.DP_REPLICATE, Axis.FSDP, Axis.TP)
_EXPERT_VIEW = (Axis.PP, Axis.DP_REPLICATE, Axis.EFSDP, Axis.EP, Axis.ETP)


def _others(view: tuple[Axis, ...], *moving: Axis) -> tuple[Axis, ...]:
    return tuple(axis for axis in view if axis not in moving)


_FIXED: dict[Group, tuple[Axis, ...]] = {
    group: _others(_EXPERT_VIEW if axis in (Axis.EFSDP, Axis.EP, Axis.ETP) else _DENSE_VIEW, axis)
    for group, axis in _ALONG.items()
} | {
    Group.CP: (Axis.PP, Axis.DP_REPLICATE, Axis.DP_SHARD, Axis.TP),  # cp is part of the fsdp axis
    Group.SEQUENCE: (Axis.PP, Axis.DP_REPLICATE, Axis.DP_SHARD),
    Group.BATCH: (Axis.PP, Axis.TP),
    Group.SHARDS: (Axis.PP, Axis.DP_REPLICATE),
    Group.STAGE: (Axis.PP,),
    Group.WORLD: (),
}
"""The coordinates that all members of a group share."""


def plan_mesh(config: ParallelismConfig, world_size: int) -> Mesh:
    """The mesh a config describes on `world_size` ranks; refuses degrees that do not fit, with the nearest that do."""
    fixed = {
        "data_parallel_replicate_degree": config.data_parallel_replicate_degree,
        "tensor_parallel_degree": config.tensor_parallel_degree,
        "context_parallel_degree": config.context_parallel_degree,
        "pipeline_parallel_degree": config.pipeline_parallel_degree,
    }
    taken = 1
    for degree in fixed.values():
        taken *= degree
    shard = config.data_parallel_shard_degree
    if shard == -1:
        if world_size % taken:
            _refuse_world(fixed, taken, world_size, ranks=_nearest_multiple(taken, world_size))
        shard = world_size // taken
    if shard * taken != world_size:
        _refuse_world(fixed | {"data_parallel_shard_degree": shard}, shard * taken, world_size, ranks=shard * taken)
    mesh = Mesh(
        pp=config.pipeline_parallel_degree,
        dp_replicate=config.data_parallel_replicate_degree,
        dp_shard=shard,
        cp=config.context_parallel_degree,
        tp=config.tensor_parallel_degree,
        ep=config.expert_parallel_degree,
        etp=config.expert_tensor_parallel_degree,
        cp_method=config.context_parallel_method,
        cp_gather=config.context_parallel_gather,
    )
    check_expert_degrees(mesh)
    return mesh


def check_expert_degrees(mesh: Mesh) -> None:
    """The experts' view must cut the same ranks into whole pieces."""
    if mesh.etp not in (1, mesh.tp):
        raise ConfigError(
            f"expert_tensor_parallel_degree is {mesh.etp} and tensor_parallel_degree is {mesh.tp}",
            why="an expert's matrices are cut over the tensor-parallel ranks or not at all",
            do=f"--parallelism.expert_tensor_parallel_degree 1 or {mesh.tp}",
        )
    if mesh.shards % (mesh.ep * mesh.etp):
        most = mesh.shards // mesh.etp
        valid = [degree for degree in range(1, most + 1) if most % degree == 0]
        nearest = min(valid, key=lambda degree: abs(degree - mesh.ep))
        raise ConfigError(
            f"expert_parallel_degree {mesh.ep} x expert_tensor_parallel_degree {mesh.etp} is {mesh.ep * mesh.etp}",
            why=f"it must divide data-parallel shard x context x tensor degree, which is {mesh.shards}",
            do=f"--parallelism.expert_parallel_degree {nearest}",
        )


def _refuse_world(degrees: dict[str, int], product_of: int, world_size: int, *, ranks: int) -> None:
    listed = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree != 1) or "one device"
    raise ConfigError(
        f"the degrees ask for {product_of} ranks ({listed}) but there are {world_size}",
        why="the mesh must use every rank exactly once",
        do=f"--ranks {ranks} (or as many under torchrun), or change the degrees",
    )


def _nearest_multiple(base: int, near: int) -> int:
    return max(base, round(near / base) * base)


def all_meshes(
    world_size: int, *, degrees: tuple[int, ...] = (1, 2, 4, 8), context_degrees: tuple[int, ...] = (1,)
) -> list[Mesh]:
    """Every supported mesh over `world_size` ranks with the given degrees: what tests draw from."""
    found = []
    for replicate, shard, cp, tp, ep in product(degrees, degrees, context_degrees, degrees, degrees):
        if replicate * shard * cp * tp != world_size:
            continue
        for etp in {1, tp}:
            if shard * cp * tp % (ep * etp) == 0:
                found.append(Mesh(dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp, ep=ep, etp=etp))
    return found

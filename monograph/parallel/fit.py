"""Does a model fit a mesh? Answered from configs alone, before anything is started. Loads without torch.

What can be padded is (the vocabulary, rows shared by fsdp). What cannot is refused with the numbers.
"""

import math

from monograph.axes import Axis
from monograph.errors import ConfigError
from monograph.models.model_config import DividedSize, ModelConfig
from monograph.parallel.config import ParallelismConfig
from monograph.parallel.mesh import Mesh, plan_mesh
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.stages import plan_stages

_FIELDS = {
    Axis.TP: "tensor_parallel_degree",
    Axis.EP: "expert_parallel_degree",
    Axis.ETP: "expert_tensor_parallel_degree",
}


def plan_fitting_mesh(
    parallelism: ParallelismConfig,
    model: ModelConfig,
    *,
    seq_len: int,
    local_batch_size: int,
    global_batch_size: int,
    world_size: int,
) -> Mesh:
    """The mesh for this run, once model and batch are known to fit it."""
    mesh = plan_mesh(parallelism, world_size)
    if mesh.ep * mesh.etp > 1 and model.find_moe() is None:
        raise ConfigError(
            f"expert_parallel_degree is {mesh.ep} and expert_tensor_parallel_degree is {mesh.etp}",
            why="this model has no routed experts to spread",
            do="--parallelism.expert_parallel_degree 1 --parallelism.expert_tensor_parallel_degree 1",
        )
    shares = list(model.find_all_divided_sizes())
    on_tp = [] if mesh.cp > 1 else [DividedSize(Axis.TP, "training.seq_len", seq_len)]
    for axis in _FIELDS:
        _check_shares(mesh, axis, [share for share in (*on_tp, *shares) if share.axis is axis])
    if mesh.cp > 1:
        check_sequence_parts(mesh, seq_len)
        if mesh.cp_method == "ulysses":
            check_ulysses_heads(mesh, [share for share in shares if share.axis is Axis.CP])
    if mesh.cp > 1 and mesh.cp_gather == "latent" and model.find_latent_sizes() is None:
        raise ConfigError(
            "parallelism.context_parallel_gather is latent",
            why="the attention of this model has no latents that keys and values are made of",
            do="--parallelism.context_parallel_gather auto",
        )
    together = local_batch_size * mesh.data_parts
    if global_batch_size != -1 and global_batch_size % together:
        nearest = max(1, round(global_batch_size / together)) * together
        raise ConfigError(
            f"training.global_batch_size {global_batch_size} cannot be shared by {mesh.data_parts} data-parallel ranks "
            f"with training.local_batch_size {local_batch_size}",
            why=f"it must be a multiple of {mesh.data_parts} x {local_batch_size} = {together}",
            do=f"--training.global_batch_size {nearest}",
        )
    if mesh.pp > 1:
        micro_batches = 1 if global_batch_size == -1 else global_batch_size // together
        schedule = plan_schedule(parallelism, micro_batches)
        units = model.find_units()
        if units is not None:
            plan_stages(units, [1.0] * len(units), schedule.stages, parallelism.pipeline_stages)
    return mesh


def check_sequence_parts(mesh: Mesh, seq_len: int) -> None:
    """Every rank has slices of equal length, and tensor-parallel ranks divide them."""
    slices = 1 if mesh.cp_method == "ulysses" else 2
    step = mesh.cp * math.lcm(slices, mesh.tp)
    if seq_len % step:
        with_tp = f" and tensor-parallel degree {mesh.tp}" if mesh.tp > 1 else ""
        raise ConfigError(
            f"training.seq_len is {seq_len} and parallelism.context_parallel_degree is {mesh.cp}",
            why=f"with method {mesh.cp_method}{with_tp} it must be a multiple of {step}",
            do=f"--training.seq_len {max(1, round(seq_len / step)) * step}",
        )


def check_ulysses_heads(mesh: Mesh, shares: list[DividedSize]) -> None:
    """Every rank gets equally many heads; a key head may go to several ranks."""
    for share in shares:
        here = share.size // mesh.tp
        if here % mesh.cp and not (share.is_repeated and mesh.cp % here == 0):
            raise ConfigError(
                f"{share.what} is {share.size} but parallelism.context_parallel_degree is {mesh.cp}"
                + (f" and parallelism.tensor_parallel_degree is {mesh.tp}" if mesh.tp > 1 else ""),
                why=f"with method ulysses ranks exchange tokens for heads, and {mesh.cp} cannot share {here} heads",
                do="--parallelism.context_parallel_method all_gather",
            )


def plan_schedule(parallelism: ParallelismConfig, micro_batches: int) -> Schedule:
    """The checked schedule of a run with this many micro-batches an update."""
    return build_schedule(
        parallelism.pipeline_schedule,
        ranks=parallelism.pipeline_parallel_degree,
        virtual_stages=parallelism.pipeline_virtual_stages,
        micro_batches=micro_batches,
    )


def _check_shares(mesh: Mesh, axis: Axis, shares: list[DividedSize]) -> None:
    """Refuse the first share that does not divide, with the nearest degree that would serve all of them."""
    degree, field = mesh.degree(axis), _FIELDS[axis]
    wrong = next((share for share in shares if share.size % degree), None)
    if wrong is None:
        return
    serve = [other for other in _choices(mesh, axis) if not any(share.size % other for share in shares)]
    nearest = min(serve, key=lambda other: abs(other - degree))
    raise ConfigError(
        f"{wrong.what} is {wrong.size} but parallelism.{field} is {degree}",
        why=f"every rank takes an equal share, and {wrong.size} / {degree} is not whole",
        do=f"--parallelism.{field} {nearest}, or another {wrong.what}",
    )


def _choices(mesh: Mesh, axis: Axis) -> list[int]:
    """The degrees an axis could have instead on as many ranks."""
    if axis is Axis.ETP:
        return [1, mesh.tp]
    room = mesh.dp_shard * mesh.tp if axis is Axis.TP else mesh.shards // mesh.etp
    return [degree for degree in range(1, room + 1) if room % degree == 0]

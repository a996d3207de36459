"""The mesh of a run, from its config and the number of ranks. Loads without torch."""

from monograph.parallel.config import ParallelismConfig
from monograph.parallel.fit import plan_fitting_mesh
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.optimizer_limits import check_sharded_optimizer
from monograph.train.replicas.config import check_division


def plan_run_mesh(config: TrainerConfig, world_size: int) -> Mesh:
    """The mesh, or an error that says why the config does not fit this many ranks."""
    mesh = plan_fitting_mesh(
        config.parallelism,
        config.model,
        seq_len=config.training.seq_len,
        local_batch_size=config.training.local_batch_size,
        global_batch_size=config.training.global_batch_size,
        world_size=world_size,
    )
    check_division(config, mesh)
    check_sharded_optimizer(config, mesh)
    return mesh


def count_ranks(config: ParallelismConfig) -> int:
    """The ranks that the degrees ask for; an open shard degree counts as one."""
    degrees = (
        config.data_parallel_replicate_degree,
        max(1, config.data_parallel_shard_degree),
        config.tensor_parallel_degree,
        config.context_parallel_degree,
        config.pipeline_parallel_degree,
    )
    count = 1
    for degree in degrees:
        count *= degree
    return count


def count_micro_batches(config: TrainerConfig, mesh: Mesh) -> int:
    """Micro-batches of an update, on each data-parallel rank."""
    training = config.training
    if training.global_batch_size == -1:
        return 1
    return training.global_batch_size // (training.local_batch_size * mesh.data_parts)

"""Does a model fit a mesh? Answered from configs alone, before anything is started. Loads without torch.

What can be padded is (the vocabulary, rows shared by fsdp). What cannot is refused with the numbers.
"""

from monograph.config.configurable import walk_configs
from monograph.errors import ConfigError
from monograph.models.config import AttentionConfig, DecoderConfig, FeedForwardConfig, LatentAttentionConfig, MoeConfig
from monograph.parallel.config import ParallelismConfig
from monograph.parallel.mesh import Mesh, plan_mesh


def plan_fitting_mesh(
    parallelism: ParallelismConfig,
    model: DecoderConfig,
    *,
    seq_len: int,
    local_batch_size: int,
    global_batch_size: int,
    world_size: int,
) -> Mesh:
    """The mesh for this run, once model and batch are known to fit it."""
    mesh = plan_mesh(parallelism, world_size)
    _check_divides("training.seq_len", seq_len, "tensor_parallel_degree", mesh.tp)
    together = local_batch_size * mesh.data_parts
    if global_batch_size != -1 and global_batch_size % together:
        nearest = max(1, round(global_batch_size / together)) * together
        raise ConfigError(
            f"training.global_batch_size {global_batch_size} cannot be shared by {mesh.data_parts} data-parallel ranks "
            f"with training.local_batch_size {local_batch_size}",
            why=f"it must be a multiple of {mesh.data_parts} x {local_batch_size} = {together}",
            do=f"--training.global_batch_size {nearest}",
        )
    has_experts = False
    for path, part in walk_configs(model, "model"):
        if isinstance(part, AttentionConfig):
            _check_divides(f"{path}.n_heads", part.n_heads, "tensor_parallel_degree", mesh.tp)
            _check_divides(f"{path}.n_kv_heads", part.n_kv_heads, "tensor_parallel_degree", mesh.tp)
        elif isinstance(part, LatentAttentionConfig):
            _check_divides(f"{path}.n_heads", part.n_heads, "tensor_parallel_degree", mesh.tp)
        elif isinstance(part, FeedForwardConfig):
            _check_divides(f"{path}.hidden_dim", part.hidden_dim, "tensor_parallel_degree", mesh.tp)
        elif isinstance(part, MoeConfig) and part.n_experts:
            has_experts = True
            _check_divides(f"{path}.n_experts", part.n_experts, "expert_parallel_degree", mesh.ep)
            _check_divides(f"{path}.hidden_dim", part.hidden_dim, "expert_tensor_parallel_degree", mesh.etp)
            shared = part.hidden_dim * part.n_shared_experts
            _check_divides(f"{path}.hidden_dim x n_shared_experts", shared, "tensor_parallel_degree", mesh.tp)
    if mesh.ep * mesh.etp > 1 and not has_experts:
        raise ConfigError(
            f"expert_parallel_degree is {mesh.ep} and expert_tensor_parallel_degree is {mesh.etp}",
            why="this model has no routed experts to spread",
            do="--parallelism.expert_parallel_degree 1 --parallelism.expert_tensor_parallel_degree 1",
        )
    return mesh


def _check_divides(what: str, size: int, axis: str, degree: int) -> None:
    if size % degree == 0:
        return
    valid = [candidate for candidate in range(1, size + 1) if size % candidate == 0]
    nearest = min(valid, key=lambda candidate: abs(candidate - degree))
    raise ConfigError(
        f"{what} is {size} but parallelism.{axis} is {degree}",
        why=f"every rank takes an equal share, and {size} / {degree} is not whole",
        do=f"--parallelism.{axis} {nearest}, or another {what}",
    )

"""How the work is spread over devices. Loads without torch."""

from dataclasses import dataclass, fields

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class ParallelismConfig(Configurable.Config):
    """Degrees of the mesh axes. This version trains on one device: every degree is 1 (or -1, "the rest")."""

    data_parallel_replicate_degree: int = 1
    """Replicas of the sharded model (HSDP)."""
    data_parallel_shard_degree: int = -1
    """Devices that share one copy of the parameters (FSDP); -1 takes the rest."""
    tensor_parallel_degree: int = 1
    """Devices that share each matrix product."""
    expert_parallel_degree: int = 1
    """Devices that share the routed experts."""
    expert_tensor_parallel_degree: int = 1
    """Devices that share each expert's matrices."""
    pipeline_parallel_degree: int = 1
    """Stages the layers are divided into."""
    context_parallel_degree: int = 1
    """Devices that share each sequence."""

    def check(self) -> None:
        for name in (field.name for field in fields(self)):
            degree = getattr(self, name)
            if degree == -1 and name == "data_parallel_shard_degree":
                continue
            if degree != 1:
                raise ConfigError(
                    f"{name} is {degree}", why="this version trains on one device", do=f"--parallelism.{name} 1"
                )

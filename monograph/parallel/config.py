"""How the work is spread over devices. Loads without torch."""

from dataclasses import dataclass
from typing import Literal

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.parallel.pipeline.builtin import check_name
from monograph.parallel.pipeline.stages import AUTO

ContextMethod = Literal["all_gather", "ulysses"]
ContextGather = Literal["auto", "keys_values", "latent"]
_DEGREES = (
    "data_parallel_replicate_degree",
    "tensor_parallel_degree",
    "expert_parallel_degree",
    "expert_tensor_parallel_degree",
    "pipeline_parallel_degree",
    "context_parallel_degree",
)


@dataclass(kw_only=True, slots=True)
class ParallelismConfig(Configurable.Config):
    """Degrees of the mesh axes, and how parameters are sharded along them."""

    data_parallel_replicate_degree: int = 1
    """Replicas of the sharded model (HSDP)."""
    data_parallel_shard_degree: int = -1
    """Devices that share one copy of the parameters (FSDP); -1 takes the rest."""
    tensor_parallel_degree: int = 1
    """Devices that share each matmul; between the matmuls each has a slice of the sequence."""
    expert_parallel_degree: int = 1
    """Devices that share the routed experts."""
    expert_tensor_parallel_degree: int = 1
    """Devices that share each expert's matrices: 1, or the tensor-parallel degree."""
    pipeline_parallel_degree: int = 1
    """Ranks that the layers are divided among, one after the other."""
    pipeline_schedule: str = "1f1b"
    """Who runs what when: gpipe, 1f1b, interleaved_1f1b, zero_bubble, zbv, or the path of a .csv file of your own."""
    pipeline_stages: Names = ("auto",)
    """auto divides by cost; or the first unit of every stage but the first, such as layers.4 layers.8."""
    pipeline_virtual_stages: int = 0
    """Stages per rank; 0 takes what the schedule needs: 2 for interleaved_1f1b and zbv, else 1."""
    context_parallel_degree: int = 1
    """Devices that share each sequence: every one has a part of its tokens, in all layers."""
    context_parallel_method: ContextMethod = "all_gather"
    """How attention gets the tokens of other devices: all gather keys and values, or all exchange tokens for heads."""
    context_parallel_gather: ContextGather = "auto"
    """What latent attention gathers: keys and values, or the latents that they are made of; auto: what is faster."""
    fsdp: Literal["auto", "fsdp2", "graph"] = "auto"
    """Who shards: graph, explicit collectives, which a graph can hold and has the bits of; fsdp2, torch's fully_shard,
    which adds some gradients in another order. auto: graph, and fsdp2 with compile.mode layer."""
    reshard_after_forward: bool = True
    """Free gathered parameters after forward and gather them again in backward: less memory, more traffic."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Gradients are cast to this before they are summed over devices, and those of several micro-batches add up in it
    (in training.dtype where that is wider)."""
    timeout_seconds: float = 300.0
    """A collective that takes longer ends the run with an error."""

    def check(self) -> None:
        for name in _DEGREES:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it counts devices", do="write 1 or more")
        if self.data_parallel_shard_degree < 1 and self.data_parallel_shard_degree != -1:
            raise ConfigError(
                f"data_parallel_shard_degree is {self.data_parallel_shard_degree}",
                why="it counts devices",
                do="write 1 or more, or -1 for all that are left",
            )
        self.check_pipeline()
        check_range(self, "timeout_seconds", 0.001, 1e8, why="torch waits a whole number of milliseconds")

    def check_pipeline(self) -> None:
        """The names and numbers of a pipeline; whether they fit a model and its batch is known later."""
        check_name(self.pipeline_schedule)
        if self.pipeline_virtual_stages < 0:
            raise ConfigError(
                f"pipeline_virtual_stages is {self.pipeline_virtual_stages}",
                why="it counts stages",
                do="write 1 or more, or 0 for what the schedule needs",
            )
        if not self.pipeline_stages or (AUTO in self.pipeline_stages and self.pipeline_stages != (AUTO,)):
            raise ConfigError(
                f"pipeline_stages is {' '.join(self.pipeline_stages) or 'empty'}",
                why="it is auto, or the first unit of every stage but the first",
                do="--parallelism.pipeline_stages auto, or for example layers.4 layers.8",
            )

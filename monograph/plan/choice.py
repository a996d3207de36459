"""One way to run a recipe on so many devices: what a plan chooses, and the configuration that asks for it. No torch."""

from typing import Literal, NamedTuple

from monograph.execute.config import ActivationCheckpointConfig
from monograph.parallel.mesh import Mesh
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.parallel.pipeline.builtin import STAGES_PER_RANK
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.options import Numerics
from monograph.train.config import TrainerConfig

SaveMode = Literal["none", "selective", "full", "min_cut", "budget"]
NO_LIMIT_GIB = 1e6
"""The budget of a capture that offloads all it can: how much that is, its graph says."""


class PipelineChoice(NamedTuple):
    """Who runs what when; it changes no stage's graph, so that one capture serves all of these."""

    schedule: str = "1f1b"
    virtual_stages: int = 1
    """Stages of one rank."""


class RunChoice(NamedTuple):
    """All that decides the graph of a step, or of a pipeline's stage."""

    mesh: Mesh
    sequences: int
    """In a micro-batch."""
    micro_batches: int
    """In one update, on one rank."""
    policy: SaveMode
    reshard: bool
    numerics: Numerics = "exact"
    offload: bool = False
    """Whether saved activations wait in the host's memory."""
    overlap: bool = False
    """Whether experts run chunk by chunk, so that all_to_alls overlap with compute."""

    @property
    def rounds_differently(self) -> bool:
        """Whether results differ in the last bits from those of `compile.numerics exact`."""
        return self.numerics != "exact" or self.overlap


def configure(
    base: TrainerConfig, choice: RunChoice, pipeline: PipelineChoice, *, offload_gib: float = NO_LIMIT_GIB
) -> TrainerConfig:
    """The recipe with everything that was chosen; `offload_gib` is the room in the host's memory, if that is used."""
    mesh = choice.mesh
    whole = choice.sequences * choice.micro_batches * mesh.data_parts
    parallelism = base.parallelism.replace(
        pipeline_parallel_degree=mesh.pp,
        context_parallel_degree=mesh.cp,
        tensor_parallel_degree=mesh.tp,
        data_parallel_replicate_degree=mesh.dp_replicate,
        data_parallel_shard_degree=-1 if base.parallelism.data_parallel_shard_degree == -1 else mesh.dp_shard,
        expert_parallel_degree=mesh.ep,
        expert_tensor_parallel_degree=mesh.etp,
        reshard_after_forward=choice.reshard,
    )
    if mesh.cp > 1:
        parallelism = parallelism.replace(context_parallel_method=mesh.cp_method)
    if mesh.pp > 1:
        usual = STAGES_PER_RANK.get(pipeline.schedule, 1)
        stages = 0 if pipeline.virtual_stages == usual else pipeline.virtual_stages
        parallelism = parallelism.replace(pipeline_schedule=pipeline.schedule, pipeline_virtual_stages=stages)
    return base.replace(
        training=base.training.replace(local_batch_size=choice.sequences, global_batch_size=whole),
        parallelism=parallelism,
        activation_checkpoint=_save(base.activation_checkpoint, choice.policy),
        compile=base.compile.replace(
            numerics=choice.numerics, expert_overlap=_overlap(base.compile.expert_overlap, choice)
        ),
        passes=base.passes.replace(
            offload_activations=_offload(base.passes.offload_activations, choice.offload, offload_gib)
        ),
    )


def _save(config: ActivationCheckpointConfig, policy: SaveMode) -> ActivationCheckpointConfig:
    if policy == config.mode:
        return config
    return config.replace(mode=policy, save=(), budget_gib=0.0)


def _overlap(config: ExpertOverlapConfig, choice: RunChoice) -> ExpertOverlapConfig:
    """Whole blocks run in chunks of sequences; a single sequence is cut in the experts alone."""
    if not choice.overlap or config.is_on:
        return config
    if choice.sequences % config.num_chunks == 0:
        return config.replace(strategy="trace")
    return config.replace(strategy="trace", chunk_dim="seq", modules="layers.*.moe")


def _offload(config: OffloadActivationsConfig, is_on: bool, gib: float) -> OffloadActivationsConfig:
    return config.replace(budget_gib=gib) if is_on else config

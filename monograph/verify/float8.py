"""A run in float8 on its mesh against the same run on one device, on meshes where both quantize the same values.

The plan is compared in fp32 before. What is left is whether the mesh quantizes as one device does. Data parallelism,
FSDP and pipelines give every matmul the values that one device gives it, so that all numbers are equal up to the order
of fp32 sums. So does expert parallelism, except for weight gradients of experts: a rank computes them in bf16 from all
ranks' tokens at once, and one device for each micro-batch.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from monograph.log import get_log
from monograph.parallel.config import ParallelismConfig
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.numerics import promise_numerics
from monograph.verify.compare import compare
from monograph.verify.data import open_updates, open_whole_updates
from monograph.verify.reference import buffers_of
from monograph.verify.trace import StepTrace, assemble, gather_traces
from monograph.verify.traced_run import TracedRun
from monograph.verify.verdict import Verdict
from monograph.verify.watch import can_record

log = get_log("verify")
_ROUNDED_SUM = "fuse_embedding_gradient"
BF16_ROUNDING = 2.0**-7
"""Largest relative difference that rounding sums to bf16 in other places explains."""


def is_quantized(config: TrainerConfig) -> bool:
    """Whether the run's matmuls are in float8."""
    return config.compile.mode == "graph" and config.passes.runs("quantize_matmuls", config.compile.numerics)


def find_scale_split(mesh: Mesh) -> str:
    """Why a mesh has other scales than one device; empty where it has the same."""
    if mesh.tp > 1:
        return "tensor parallelism splits rows, of which each part has its own scale, and adds their matmuls in bf16"
    if mesh.cp > 1:
        return "context parallelism splits columns, of which each part has its own scale in weight gradients"
    return ""


def from_weights(config: TrainerConfig) -> TrainerConfig:
    """The config that takes the weights alone of what it starts from, and writes no checkpoint."""
    loads = bool(config.checkpoint.load)
    return config.replace(checkpoint=config.checkpoint.replace(enabled=False, load_model_only=loads))


def in_float8(config: TrainerConfig) -> TrainerConfig:
    """The config with its float8 matmuls; what is added over ranks and micro-batches is added in fp32.

    So is what tied weights have of several gradients, which fuse_embedding_gradient rounds to bf16 on one device.
    """
    passes = config.passes
    on = tuple(name for name in passes.on if name != _ROUNDED_SUM)
    return from_weights(config).replace(
        passes=passes.replace(on=on, off=tuple(dict.fromkeys([*passes.off, _ROUNDED_SUM]))),
        training=config.training.replace(dtype="float32"),
        optimizer=config.optimizer.for_fp32(),
        parallelism=config.parallelism.replace(reduce_dtype="float32"),
    )


def on_one_device(config: TrainerConfig) -> TrainerConfig:
    """The same run without a mesh."""
    kept = {name: getattr(config.parallelism, name) for name in ("reshard_after_forward", "fsdp", "timeout_seconds")}
    return config.replace(
        parallelism=ParallelismConfig(**kept), compile=config.compile.replace(artifact="", cuda_graph="off")
    )


def verify_float8(config: TrainerConfig, groups: Groups, *, steps: int, tolerance: float) -> Verdict | None:
    """The verdict on rank 0, None elsewhere. Updates are not compared: they are those of the fp32 comparison."""
    config = in_float8(config)
    run = TracedRun(config, groups, is_recorded=can_record(config))
    promise = promise_numerics(config, ran=run.step.ran_passes, device=groups.device.type)
    tolerance = max(tolerance, BF16_ROUNDING) if groups.mesh.ep > 1 else tolerance
    verdict = Verdict(tolerance=tolerance, numerics=str(promise), precision="float8")
    part, parts = run.step.data_part
    sharded: list[StepTrace] = []
    with open_updates(config, part, parts) as updates:
        for number, batches in zip(range(1, steps + 1), updates, strict=False):
            traces = gather_traces(run.update(number, batches), groups.mesh.world_size, groups.checkpoint_group())
            sharded += [] if traces is None else [assemble(traces, run.step.whole_table)]
    run.step.close()
    if groups.rank == 0:
        with groups.alone() as alone, open_whole_updates(config, parts) as updates:
            for number, (found, expected) in enumerate(compute_alone(config, alone, sharded, updates), 1):
                verdict.add(number, compare(found, expected))
                log.info("step %d of %d compared in float8", number, steps)
    groups.barrier()
    return verdict if groups.rank == 0 else None


def compute_alone(
    config: TrainerConfig, alone: Groups, sharded: Sequence[StepTrace], updates: Iterator[list[Batch]]
) -> Iterator[tuple[StepTrace, StepTrace]]:
    """Each update of the mesh, and what one device computes from the same weights, buffers and data."""
    reference = TracedRun(on_one_device(config), alone, is_recorded=can_record(config))
    buffers = buffers_of(reference.step.model)
    state: dict[str, Tensor] = {}
    for number, (found, batches) in enumerate(zip(sharded, updates, strict=False), 1):
        with torch.no_grad():
            for name, parameter in reference.step.parameters.items():
                parameter.copy_(found.before[name])
            for name, value in state.items():
                buffers[name].copy_(value)
        expected = assemble([reference.update(number, batches)], reference.step.whole_table)
        expected.after, expected.state = {}, {}
        state = {name: found.after[name] for name in buffers}
        yield found, expected
    reference.step.close()

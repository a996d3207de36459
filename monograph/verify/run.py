"""Run the sharded plan and the single device side by side, on the same weights and data, and compare every step."""

import os
from pathlib import Path

from torch import Tensor

from monograph.errors import EXIT_FAILED
from monograph.execute.base import MeshStep
from monograph.execute.device import deterministic_kernels, find_device
from monograph.execute.graph_step import GraphStep
from monograph.log import get_log, set_up_log
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.pipeline.schedule import BUBBLE
from monograph.run import build_step
from monograph.train.build_optimizer import build_optimizer
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.data.prefetcher import Prefetcher
from monograph.train.layout import plan_run_mesh
from monograph.train.numerics import promise_numerics
from monograph.train.update import add_gradients, apply_update
from monograph.verify.compare import compare
from monograph.verify.reference import Reference, buffers_of
from monograph.verify.show import print_verdict, write_verdict
from monograph.verify.trace import LocalTrace, assemble, gather_traces, gradients_of, snapshot
from monograph.verify.verdict import Verdict
from monograph.verify.watch import ModuleRecording, can_record, recorded, traced

log = get_log("verify")
TOLERANCE = 1e-5
"""Largest relative difference that fp32 rounding explains."""


def in_fp32(config: TrainerConfig) -> TrainerConfig:
    """The config in the precision that makes a strict comparison fair: everything in fp32.

    The grouped kernel takes bf16 only; its place is taken by the grouped algorithm that takes any dtype.
    """
    config = config.replace(
        training=config.training.replace(dtype="float32", compute_dtype="float32"),
        optimizer=config.optimizer.for_fp32(),
        parallelism=config.parallelism.replace(reduce_dtype="float32"),
    )
    moe = config.model.find_moe()
    if moe is None or moe.experts.backend != "grouped_mm":
        return config
    experts = moe.experts.replace(backend="grouped_loop")
    return config.replace(model=config.model.replace(moe=moe.replace(experts=experts)))


def on_one_device(config: TrainerConfig) -> TrainerConfig:
    """What the reference computes with: the simplest form of everything."""
    moe = config.model.find_moe()
    if moe is None:
        return config
    return config.replace(model=config.model.replace(moe=moe.replace(experts=moe.experts.replace(backend="loop"))))


def verify(config: TrainerConfig, groups: Groups, *, steps: int = 2, tolerance: float = TOLERANCE) -> Verdict | None:
    """The verdict on rank 0, None elsewhere."""
    config = in_fp32(config)
    data = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.find_vocab_size(),
        seed=config.debug.seed,
        split="train",
    )
    step = build_step(config, groups, probe=traced if can_record(config) else None)
    optimizer = build_optimizer(config.plan_optimizer(), step)
    scheduler = config.lr_scheduler.build(peak=config.optimizer.lr, steps=config.training.steps)
    is_judge = groups.rank == 0
    reference = Reference(on_one_device(config), groups.device) if is_judge else None
    promise = promise_numerics(config, ran=step.ran_passes, device=groups.device.type)
    verdict = Verdict(tolerance=tolerance, numerics=str(promise))
    mine, everyone = _batches(config, data, *step.data_part), _batches(config, data, 0, 1)
    _, parts = step.data_part
    micro = _global_batch(config, parts) // (config.training.local_batch_size * parts)
    with mine, everyone:
        for number in range(1, steps + 1):
            lr = scheduler.lr(number)
            before = snapshot(step.parameters)
            is_module_by_module = can_record(config) and not isinstance(step, GraphStep)
            with recorded(step.model, is_open=is_module_by_module) as recording:
                loss = _add_gradients(step, [next(mine) for _ in range(micro)], recording, number)
            if isinstance(step, GraphStep):
                recording.add_outputs(step.outputs.take_probed())
            gradients = snapshot(gradients_of(step))
            updated = apply_update(step, optimizer, loss=loss, lr=lr, max_norm=config.training.max_norm)
            local = LocalTrace(
                loss=loss.item(),
                grad_norm=updated.grad_norm.item(),
                outputs=recording.outputs,
                output_gradients=recording.gradients,
                choices=recording.choices,
                before=before,
                gradients=gradients,
                after=snapshot(step.parameters),
                buffers=snapshot(buffers_of(step.model)),
                metrics={name: value.double().cpu() for name, value in updated.metrics.items() if name != BUBBLE},
            )
            traces = gather_traces(local, groups.mesh.world_size, groups.checkpoint_group())
            if traces is not None and reference is not None:
                sharded = assemble(traces, step.whole_table)
                expected = reference.run([next(everyone) for _ in range(micro * parts)], parts=parts)
                reference.update(expected, sharded.gradients, lr)
                verdict.add(number, compare(sharded, expected))
                log.info("step %d of %d compared", number, steps)
            groups.barrier()
    return verdict if is_judge else None


def _add_gradients(step: MeshStep, batches: list[Batch], recording: ModuleRecording, number: int) -> Tensor:
    """The trainer's own, with a note on where the step was when it failed: a collective's error does not say."""
    try:
        return add_gradients(step, batches)
    except Exception as error:
        error.add_note(f"verify: step {number} failed {recording.where()}".rstrip())
        raise


def verify_command(config: TrainerConfig) -> int:
    """`monograph verify`, as one of the ranks: exit code 1 when anything differs."""
    set_up_log(level=config.debug.log_level)
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    device = find_device(config.debug.device)
    with (
        deterministic_kernels(config.debug.deterministic),
        joined_groups(mesh, device, timeout_seconds=config.parallelism.timeout_seconds) as groups,
    ):
        verdict = verify(config, groups)
        failed = groups.any_rank(verdict is not None and not verdict.is_equal)
        if verdict is not None:
            print_verdict(verdict, mesh)
            write_verdict(verdict, Path(config.job.dump_folder) / "verify.json")
    return EXIT_FAILED if failed else 0


def _global_batch(config: TrainerConfig, parts: int) -> int:
    wanted = config.training.global_batch_size
    return config.training.local_batch_size * parts if wanted == -1 else wanted


def _batches(config: TrainerConfig, data: DataLoader, part: int, parts: int) -> Prefetcher[Batch]:
    whole = _global_batch(config, parts)
    return data.batches(
        Cursor(), local_batch_size=config.training.local_batch_size, global_batch_size=whole, part=part, parts=parts
    )

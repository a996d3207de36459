"""Run the sharded plan and the single device side by side, on the same weights and data, and compare every step."""

import os
from dataclasses import replace
from pathlib import Path

from monograph.errors import EXIT_FAILED
from monograph.execute.device import deterministic_kernels, use_device
from monograph.log import get_log, set_up_log
from monograph.parallel.groups import Groups, joined_groups
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.numerics import promise_numerics
from monograph.train.out_of_memory import memory_explained
from monograph.verify.compare import Differences, compare
from monograph.verify.coverage import find_uncovered
from monograph.verify.data import open_updates, open_whole_updates
from monograph.verify.float8 import find_scale_split, from_weights, is_quantized, verify_float8
from monograph.verify.rates import compare_rates
from monograph.verify.reference import Reference
from monograph.verify.show import print_verdict, write_verdict
from monograph.verify.start import spread_model, spread_shards
from monograph.verify.trace import assemble, gather_traces
from monograph.verify.traced_run import TracedRun
from monograph.verify.verdict import Verdict
from monograph.verify.watch import can_record

log = get_log("verify")
TOLERANCE = 1e-5
"""Largest relative difference that fp32 rounding explains."""
LESS = (
    "fewer layers or a shorter sequence: --model.n_layers 2, --training.seq_len 1024; the first device holds two models"
)
"""What to do where memory runs out: both sides are in fp32, and one is not sharded."""


def in_fp32(config: TrainerConfig) -> TrainerConfig:
    """The config in the precision that makes a strict comparison fair: everything in fp32, nothing in float8.

    The grouped kernel takes bf16 only; its place is taken by the grouped algorithm that takes any dtype.
    """
    config = from_weights(without_float8(config)).replace(
        training=config.training.replace(dtype="float32", compute_dtype="float32"),
        optimizer=config.optimizer.for_fp32(),
        parallelism=config.parallelism.replace(reduce_dtype="float32"),
    )
    moe = config.model.find_moe()
    if moe is None or moe.experts.backend != "grouped_mm":
        return config
    experts = moe.experts.replace(backend="grouped_loop")
    return config.replace(model=config.model.replace(moe=moe.replace(experts=experts)))


def without_float8(config: TrainerConfig) -> TrainerConfig:
    """The config with the matmuls of numerics `fast` in place of float8 ones."""
    if not is_quantized(config):
        return config
    on = tuple(name for name in config.passes.on if name != "quantize_matmuls")
    numerics = "fast" if config.compile.numerics == "float8" else config.compile.numerics
    return config.replace(
        compile=config.compile.replace(numerics=numerics),
        passes=config.passes.replace(on=on, quantize_matmuls=QuantizeMatmulsConfig()),
    )


def on_one_device(config: TrainerConfig) -> TrainerConfig:
    """What the reference computes with: the simplest form of everything."""
    moe = config.model.find_moe()
    if moe is None:
        return config
    return config.replace(model=config.model.replace(moe=moe.replace(experts=moe.experts.replace(backend="loop"))))


def verify(config: TrainerConfig, groups: Groups, *, steps: int = 2, tolerance: float = TOLERANCE) -> Verdict | None:
    """The verdict on rank 0, None elsewhere: in fp32, and a run in float8 also as it is, where one device has the same
    numbers."""
    verdict = verify_fp32(in_fp32(config), groups, steps=steps, tolerance=tolerance)
    if verdict is not None:
        verdict.uncovered = find_uncovered(config, groups.device.type, copies_through_host=groups.copies_through_host)
    if not is_quantized(config):
        return verdict
    reason = find_scale_split(groups.mesh)
    float8 = None if reason else verify_float8(config, groups, steps=steps, tolerance=tolerance)
    return None if verdict is None else replace(verdict, float8=float8, float8_reason=reason)


def verify_fp32(config: TrainerConfig, groups: Groups, *, steps: int, tolerance: float) -> Verdict | None:
    """The plan in fp32 against modules of one device that know nothing of it."""
    run = TracedRun(config, groups, is_recorded=can_record(config))
    is_judge = groups.rank == 0
    reference = Reference(on_one_device(config), groups.device) if is_judge else None
    if not config.checkpoint.load:
        spread_shards(run.step, config.debug.seed)
        if reference is not None:
            spread_model(reference.model, config.debug.seed)
    promise = promise_numerics(config, ran=run.step.ran_passes, device=groups.device.type)
    verdict = Verdict(tolerance=tolerance, numerics=str(promise))
    verdict.add(1, Differences(metrics=compare_rates(config)))
    part, parts = run.step.data_part
    with open_updates(config, part, parts) as mine, open_whole_updates(config, parts) as everyone:
        for number in range(1, steps + 1):
            local = run.update(number, next(mine))
            traces = gather_traces(local, groups.mesh.world_size, groups.checkpoint_group())
            if traces is not None and reference is not None:
                sharded = assemble(traces, run.step.whole_table)
                expected = reference.run(next(everyone), parts=parts)
                reference.update(expected, sharded, lr=config.optimizer.lr)
                verdict.add(number, compare(sharded, expected))
                log.info("step %d of %d compared", number, steps)
            groups.barrier()
    return verdict if is_judge else None


def verify_command(config: TrainerConfig) -> int:
    """`monograph verify`, as one of the ranks: exit code 1 when anything differs."""
    set_up_log(level=config.debug.log_level)
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    device, limit = use_device(config.debug.device), config.parallelism.timeout_seconds
    with (
        deterministic_kernels(config.debug.deterministic),
        joined_groups(mesh, device, timeout_seconds=limit, shares_gpus=config.debug.share_gpus) as groups,
    ):
        with memory_explained(groups.device, {}, do=LESS):
            verdict = verify(config, groups)
        failed = groups.any_rank(verdict is not None and not verdict.is_equal)
        if verdict is not None:
            print_verdict(verdict, mesh)
            write_verdict(verdict, Path(config.job.dump_folder) / "verify.json")
    return EXIT_FAILED if failed else 0

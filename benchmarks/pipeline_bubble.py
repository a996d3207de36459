"""The bubble of every schedule on the clock: real ranks, real sends and receives, computation replaced by sleeps.

    python benchmarks/pipeline_bubble.py
    python benchmarks/pipeline_bubble.py --milliseconds 40 --updates 7

Two cores cannot compute for four ranks at once, so a stage's forward, input gradient and weight gradients each take the
same time asleep. What is measured is the schedule, the runtime and the links (gloo). Printed: how much longer than
without a bubble an update takes, next to what the simulation and the published formula say; and how much longer than
simulated it takes, for each action of a rank.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.capture.stage import CarrySpec
from monograph.execute.pipeline.links import Links
from monograph.execute.pipeline.runtime import PipelineRun, StageInterface
from monograph.execute.pipeline.stage_program import HANDED_ON
from monograph.graph.signature import OutputKind
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.actions import ActionKind
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.simulate import StageCost, simulate

CASES = [(name, 1) for name in ("gpipe", "1f1b", "zero_bubble")] + [("interleaved_1f1b", 2), ("zbv", 2)]
FORMULA = {"gpipe": 1, "1f1b": 1, "interleaved_1f1b": 1 / 2, "zero_bubble": 1 / 3, "zbv": 1 / 6}
SPEC = CarrySpec((4, 256), torch.float32, (256, 1))


def make_stage(cost, *, is_first, is_last):
    """A stage that sleeps."""

    def run(part, box):
        time.sleep(cost.seconds(part.kind))
        if part.kind is ActionKind.FORWARD and not is_last:
            box[f"{HANDED_ON[OutputKind.CARRY]}h"] = torch.zeros(SPEC.shape)
        if part.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRAD) and not is_first:
            box[f"{HANDED_ON[OutputKind.CARRY_GRADIENT]}h"] = torch.zeros(SPEC.shape)

    carry = {} if is_first else {"h": SPEC}
    return StageInterface(run, lambda box, kind, values: None, carry, {} if is_last else {"h": SPEC})


def measure(name, per_rank, micro_batches, seconds, updates, groups):
    """The median update over the ideal one, and what the simulation says."""
    ranks = groups.mesh.pp
    schedule = build_schedule(name, ranks=ranks, virtual_stages=per_rank, micro_batches=micro_batches)
    part = seconds / per_rank
    cost = StageCost(forward_seconds=part, input_grad_seconds=part, weight_grad_seconds=part)
    last = schedule.stages - 1
    own = schedule.stages_of(groups.rank)
    stages = {number: make_stage(cost, is_first=number == 0, is_last=number == last) for number in own}
    links = Links(groups)
    taken = []
    for _ in range(updates):
        groups.barrier()
        start = time.perf_counter()
        PipelineRun(schedule, groups.rank, stages, links, [{}] * micro_batches, {}).run()
        taken.append(time.perf_counter() - start)
    slowest = [max(each) for each in zip(*groups.all_gather_object(taken), strict=True)]
    ideal = 3 * seconds * micro_batches
    predicted = simulate(schedule, [cost] * schedule.stages).seconds / ideal - 1
    return statistics.median(slowest) / ideal - 1, predicted, FORMULA[name] * (ranks - 1) / micro_batches


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--milliseconds", type=float, default=20.0, help="of a forward on one rank")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--schedules", nargs="*", default=[name for name, _ in CASES])
    options = parser.parse_args()
    if "RANK" not in os.environ:
        names = ("schedule", "ranks", "stages per rank", "micro-batches", "measured", "simulated", "formula", "ratio")
        names += ("excess per action",)
        print(f"| {' | '.join(names)} |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for ranks in options.ranks:
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
            subprocess.run([*command, __file__, *sys.argv[1:]], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return
    ranks = int(os.environ["WORLD_SIZE"])
    with joined_groups(Mesh(pp=ranks), torch.device("cpu")) as groups:
        for micro_batches in (2 * ranks, 4 * ranks):
            for name, per_rank in [case for case in CASES if case[0] in options.schedules]:
                seconds = options.milliseconds / 1e3
                found = measure(name, per_rank, micro_batches, seconds, options.updates, groups)
                if groups.rank == 0:
                    row = (name, ranks, per_rank, micro_batches, *(f"{value:.3f}" for value in found))
                    actions = micro_batches * per_rank * (3 if name in ("zero_bubble", "zbv") else 2)
                    excess = (found[0] - found[1]) * 3 * options.milliseconds * micro_batches / actions
                    row = (*row, f"{found[0] / found[2]:.2f}", f"{excess:.2f} ms")
                    print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()

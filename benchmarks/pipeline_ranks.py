"""Pipelines on real ranks of one machine: the bits of one device, for every schedule, op by op and recorded.

    python benchmarks/pipeline_ranks.py                  # CPU, gloo; recordings are emulated
    python benchmarks/pipeline_ranks.py --device cuda    # all ranks share a GPU over NCCL; CUDA graphs

With a GPU this needs NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1. Printed for each case: whether losses, norms
and parameters are those of one rank that accumulates the same micro-batches op by op; over which backend sends
and receives go, in process groups of their own (checked); how many actions of the last rank were replayed; the largest
measured bubble. With `cuda_graph require` every stage is recorded or the case fails. The exit code is 1 if a case does.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kit.ranks import pool
from tests.kit.tiny import WITH_EXPERTS, tiny
from tests.parallel.pipeline.pipeline_work import make_updates

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv")
GROUPED = {"training.compute_dtype": "bfloat16", "model.moe.experts.backend": "grouped_mm"}
"""Experts without host synchronization: what a recording needs."""
COLUMNS = ("model", "ranks", "schedule", "stages run", "bits of one device", "links", "recordings", "bubble", "seconds")


def find_difference(one, ranks):
    """The first number of a rank that is not that of one device; empty when there is none."""
    for rank, found in enumerate(ranks):
        for name in ("losses", "norms"):
            pairs = zip(getattr(found, name), getattr(one, name), strict=True)
            wrong = [index for index, (ours, theirs) in enumerate(pairs) if ours != theirs]
            if wrong:
                return f"{name} of rank {rank} from update {wrong[0]} on"
        for name, value in found.parameters.items():
            if not torch.equal(value, one.parameters[name]):
                return f"{name} of rank {rank}"
    return ""


def run_case(options, folder, model, one, ranks, schedule, recorded):
    """One row of the table; whether it is as it should be."""
    degrees = {"pipeline_parallel_degree": ranks, "pipeline_schedule": schedule}
    is_emulated = recorded and options.device == "cpu"
    wanted = "require" if recorded and not is_emulated else "off"
    config = tiny(model, folder, {**find_changes(options, model), "compile.cuda_graph": wanted}, **degrees)
    start = time.perf_counter()
    try:
        found = pool.run(ranks, make_updates, config, options.updates, False, is_emulated, timeout_seconds=300.0)
    except Exception as error:
        return (model, ranks, schedule, recorded, f"FAILED: {str(error).splitlines()[0][:120]}"), False
    difference = find_difference(one, found)
    recordings = found[-1].recordings
    is_right = not difference and bool(recordings) == bool(recorded)
    how = ("CUDA graphs" if not is_emulated else "replayed ops") if recorded else "op by op"
    bubble = f"{max(each.bubble for each in found):.2f}"
    seconds = f"{time.perf_counter() - start:.1f}"
    bits = "yes" if not difference else f"NO: {difference}"
    return (model, ranks, schedule, how, bits, found[-1].links, recordings, bubble, seconds), is_right


def find_changes(options, model):
    """The run that every case makes."""
    grouped = GROUPED if options.device == "cuda" and model in WITH_EXPERTS else {}
    return {
        "compile.mode": "graph",
        "compile.cuda_graph": "off",
        "model.n_layers": 6,
        "training.global_batch_size": options.micro_batches,
        "debug.device": options.device,
        **grouped,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--models", nargs="*", default=["llama3", "deepseek_v3"])
    parser.add_argument("--schedules", nargs="*", default=SCHEDULES)
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--micro-batches", type=int, default=4)
    options = parser.parse_args()
    is_right = True
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            config = tiny(model, Path(folder), find_changes(options, model))
            (one,) = pool.run(1, make_updates, config, options.updates)
            # On a CPU experts are a loop over sizes that the host reads, which cannot be recorded.
            can_record = options.device == "cuda" or model not in WITH_EXPERTS
            for ranks in options.ranks:
                for schedule in options.schedules:
                    for recorded in (False, True) if can_record else (False,):
                        row, fine = run_case(options, Path(folder), model, one, ranks, schedule, recorded)
                        is_right &= fine
                        print(f"| {' | '.join(map(str, row))} |", flush=True)
    sys.exit(not is_right)


if __name__ == "__main__":
    main()

"""Pipelines on real ranks of one machine: the bits of one device, for every schedule.

    python benchmarks/pipeline_ranks.py                  # CPU, gloo
    python benchmarks/pipeline_ranks.py --device cuda    # all ranks share a GPU over NCCL

With a GPU this needs NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1. Sends and receives then run on NCCL
communicators of their own, one for each link. Printed for each case: whether losses, gradient norms and parameters are
those of one rank that accumulates the same micro-batches.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.pipeline.pipeline_work import make_updates

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv")


def is_equal(one, ranks):
    """Whether every rank has the numbers of one device."""
    return all(
        found.losses == one.losses
        and found.norms == one.norms
        and all(torch.equal(value, one.parameters[name]) for name, value in found.parameters.items())
        for found in ranks
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--models", nargs="*", default=["llama3", "deepseek_v3"])
    parser.add_argument("--schedules", nargs="*", default=SCHEDULES)
    parser.add_argument("--updates", type=int, default=10)
    options = parser.parse_args()
    failed = False
    print("| model | ranks | schedule | bits of one device | seconds |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        changes = {
            "compile.mode": "graph",
            "compile.cuda_graph": "off",
            "model.n_layers": 6,
            "training.global_batch_size": 4,
            "debug.device": options.device,
        }
        for model in options.models:
            (one,) = pool.run(1, make_updates, tiny(model, Path(folder), changes), options.updates)
            for ranks in options.ranks:
                for schedule in options.schedules:
                    degrees = {"pipeline_parallel_degree": ranks, "pipeline_schedule": schedule}
                    config = tiny(model, Path(folder), changes, **degrees)
                    start = time.perf_counter()
                    found = pool.run(ranks, make_updates, config, options.updates, timeout_seconds=300.0)
                    equal = is_equal(one, found)
                    failed |= not equal
                    seconds = time.perf_counter() - start
                    print(
                        f"| {model} | {ranks} | {schedule} | {'yes' if equal else 'NO'} | {seconds:.1f} |", flush=True
                    )
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""Context-parallel attention by kind and method against naive attention in fp32 on one device.

    python benchmarks/context_kinds.py --ranks 2            # bf16 on a GPU that the ranks share, over NCCL
    python benchmarks/context_kinds.py --device cpu         # fp32 over gloo

Every rank has its part of the sequences, as in a step. Compared are its rows of the output and of the gradients of q, k
and v, and the gradient of the sinks summed over ranks. On a shared GPU this needs NCCL 2.30 or newer and
NCCL_MULTI_RANK_GPU_ENABLE=1. Exit code 1 when a value is further from the naive form than its dtype explains.
"""

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.context_kinds_work import KINDS, SHAPES, measure_kinds
from tests.kit.ranks import pool

TOLERANCE = {"cuda": 1e-2, "cpu": 1e-5}
"""Largest distance from the naive form, as a part of its largest value: bf16 on a GPU, fp32 on a CPU."""


def main() -> int:
    """Print the table; 1 when a distance is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    options = parser.parse_args()
    worst = 0.0
    print(f"{options.ranks} ranks, largest distance of out, dq, dk, dv and dsinks, as a part of the largest value\n")
    print("| shape | kind | all_gather | Ulysses |\n|---|---|---|---|")
    for shape in options.shapes:
        found = {}
        for method in ("all_gather", "ulysses"):
            answers = pool.run(
                options.ranks, measure_kinds, options.device, method, SHAPES[shape], timeout_seconds=300.0
            )
            found[method] = {kind: max(answer[kind] for answer in answers) for kind in KINDS}
        for kind in KINDS:
            distances = [found[method][kind] for method in found]
            worst = max(worst, *distances)
            print(f"| {shape} | {kind} | " + " | ".join(f"{each:.1e}" for each in distances) + " |", flush=True)
    allowed = TOLERANCE[options.device]
    print(f"\nlargest {worst:.1e}, allowed {allowed:.0e}")
    return 0 if worst < allowed else 1


if __name__ == "__main__":
    sys.exit(main())

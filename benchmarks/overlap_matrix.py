"""Chunks in every strategy, model, mode, count, mesh and policy, compared bit for bit with eager chunking.

    python benchmarks/overlap_matrix.py --ranks 1
    python benchmarks/overlap_matrix.py --ranks 4 --updates 20 --models deepseek_v3 --only "(ep 2)"

One line for every combination: the tensors (losses, gradients, buffers, updated weights of every step, on all ranks)
that differ, which should be none. Takes from minutes to hours; tests/steps/test_expert_overlap.py runs a sample.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kit.ranks import pool
from tests.kit.tiny import WITH_EXPERTS
from tests.steps.overlap import MODES, compare_strategies

MESHES: dict[int, list[dict[str, int]]] = {
    1: [{}],
    2: [{"ep": 2}],
    4: [{"ep": 2}, {"tp": 2, "ep": 2}],
    8: [{"tp": 2, "ep": 4}],
}
"""Ranks -> degrees; what is left of the ranks shards parameters."""
ROUTINGS = ((), (0,), (2, 3), (3,), (0, 1))
FULL = {"activation_checkpoint.mode": "full"}


def find_ways(ranks: int, wanted: str) -> dict[str, dict[str, Any]]:
    """Strategies, each with and without recomputation; where rows travel also with turns."""
    found: dict[str, dict[str, Any]] = {}
    for strategy in ("trace", "graph"):
        in_order = {"passes.off": ("overlap_experts",)}
        for name, more in {"as it comes": in_order, **({"turns": {}} if ranks > 1 else {})}.items():
            found[f"{strategy}, {name}"] = {"strategy": strategy, **more}
            found[f"{strategy}, {name}, full recompute"] = {"strategy": strategy, **more, **FULL}
    return {name: way for name, way in found.items() if wanted in name}


def find_cases(options: argparse.Namespace) -> Iterator[tuple[str, tuple[str, str, int, str, dict[str, int]]]]:
    """What a line says first, and: model, mode, chunks, when gradients are added, mesh. Four chunks need eight
    sequences, or cut tokens."""
    sums = ("before_reduce", "after_reduce")
    for case in itertools.product(options.models, MODES, options.chunks, sums, MESHES[options.ranks]):
        model, mode, chunks, when, degrees = case
        mesh = " ".join(f"{axis} {degree}" for axis, degree in degrees.items()) or "alone"
        said = f"{model}, {mode}, {chunks} chunks, {when}, {options.ranks} ranks ({mesh})"
        if options.only in said:
            yield said, case


def compare(
    model: str,
    folder: str,
    overlap: dict[str, Any],
    ways: dict[str, Any],
    updates: int,
    extra: dict[str, Any],
    degrees: dict[str, int],
) -> dict[str, list[str]]:
    """On one rank."""
    routings = tuple(itertools.islice(itertools.cycle(ROUTINGS), updates))
    return compare_strategies(model, folder, overlap, ways, routings, extra, **degrees)


def main(words: Sequence[str] | None = None) -> int:
    """Run everything that was asked for; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1, choices=list(MESHES))
    parser.add_argument("--models", nargs="+", default=WITH_EXPERTS, choices=WITH_EXPERTS)
    parser.add_argument("--chunks", nargs="+", type=int, default=(2, 4))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--only", default="", help="cases whose line contains this")
    parser.add_argument("--ways", default="", help="ways whose name contains this, for example: turns")
    options = parser.parse_args(words)
    ways = find_ways(options.ranks, options.ways)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="overlap-matrix-") as folder:
        for said, (model, mode, chunks, sums, degrees) in find_cases(options):
            start = time.perf_counter()
            overlap = {**MODES[mode], "num_chunks": chunks, "grad_sum": sums}
            extra = {"training.local_batch_size": 2 * chunks}
            given = (model, folder, overlap, ways, options.updates, extra, degrees)
            answers = pool.run(options.ranks, compare, *given, timeout_seconds=3600.0)
            for way in answers[0]:
                different = sorted({name for answer in answers for name in answer[way]})
                failed += bool(different)
                verdict = f"{len(different)} DIFFER, first {different[0]}" if different else "same bits"
                print(f"{said}, {way}: {verdict}")
            print(f"  {time.perf_counter() - start:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

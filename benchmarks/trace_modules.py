"""How many kernels of a measured step get a module, and how far predicted and measured times of modules lie apart.

    python -m benchmarks.trace_modules                            # on a GPU: llama3_bench_1b, as a replayed CUDA graph
    python -m benchmarks.trace_modules llama3_debugmodel --machine cpu --flags "--debug.device cpu"

Three commands of monograph make the traces: `inspect` the predicted one, `bench --profile` one that ran op by op with
names, and `train --profiler.start` one of a training step as it really runs, which on a GPU is a replayed CUDA graph.
Tables: for each measured trace, how much of its kernel time has a module (target: 95 % of a replay's, without the
optimizer), the largest differences to the prediction, and modules whose replayed time differs by more than 20 % from
that op by op, which would mean that kernels were taken for others. On a CPU times vary by more, and the targets do not
apply: that run only shows that the script works.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from monograph import cli
from monograph.report.join_traces import Event, cut_step, read_trace
from monograph.report.module_times import TimedEvent, compare_modules, find_timed_events

STEP = 12
"""The training step that is traced: recording a CUDA graph is over by then."""
LARGEST = 10
TARGET, TOLERANCE = 0.95, 0.20
WORTH_COMPARING = 0.01
"""Of all measured time: smaller modules are too short to compare."""
_OPTIMIZER = ("adam", "multi_tensor", "lpnorm", "foreach")


def make_traces(
    recipe: str, machine: str, flags: list[str], folder: Path
) -> tuple[list[Event], list[Event], list[Event]]:
    """The predicted step, the same op by op, and a step of a training run."""
    words = [recipe, "--machine", machine, "--training.global_batch_size", "-1", *flags]
    run = ["--training.steps", str(STEP), "--validator.interval", "0", "--checkpoint.enabled", "false"]
    window = ["--profiler.start", str(STEP), "--profiler.steps", "1", "--job.dump_folder", str(folder / "run")]
    commands = [
        ["inspect", *words, "--out", str(folder / "predicted")],
        ["bench", *words, "--modes", "exact", "--profile", str(folder / "bench")],
        ["train", *words, *run, *window, "--lr_scheduler.warmup_steps", "0"],
    ]
    for command in commands:
        if code := cli.main(command):
            sys.exit(f"monograph {' '.join(command)} ended with {code}")
    (trained,) = (folder / "run" / "traces").glob("*.json")
    names = (folder / "predicted" / "predicted.trace.json", folder / "bench" / "exact.trace.json", trained)
    predicted, named, replayed = (read_trace(str(name)) for name in names)
    return predicted, cut_step(named), cut_step(replayed)


def count_known(timed: list[TimedEvent]) -> tuple[int, int, float, float]:
    """Kernels, those with a module, their milliseconds, and the milliseconds of all but the optimizer's."""
    rest = [each for each in timed if not any(word in str(each.event["name"]).lower() for word in _OPTIMIZER)]
    known = [each for each in rest if each.module is not None]
    milliseconds = (sum(each.event.get("dur", 0) for each in group) / 1000 for group in (known, rest))
    return len(rest), len(known), *milliseconds


def main() -> int:
    """Print the tables; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", default="llama3_bench_1b")
    parser.add_argument("--machine", default="h200")
    parser.add_argument("--flags", default="", help="further flags of the recipe, in one string")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        traces = make_traces(arguments.recipe, arguments.machine, arguments.flags.split(), Path(folder))
    predicted, named, replayed = traces
    kinds = {"op by op": find_timed_events(named), "training step": find_timed_events(replayed, named)}
    print(
        "\n| trace | kernels or ops | with a module | ms with a module | ms in all | share |\n|---|---|---|---|---|---|"
    )
    is_good = True
    for kind, timed in kinds.items():
        total, known, known_ms, all_ms = count_known(timed)
        share = known_ms / max(all_ms, 1e-9)
        is_good &= share >= TARGET
        print(f"| {kind} | {total:,} | {known:,} | {known_ms:.1f} | {all_ms:.1f} | {100 * share:.1f} % |")
    tables = {kind: compare_modules(predicted, timed)[0] for kind, timed in kinds.items()}
    print("\n| module | direction | predicted ms | measured ms | predicted / measured |\n|---|---|---|---|---|")
    for row in tables["training step"][:LARGEST]:
        ratio = f"{row.predicted / row.measured:.2f}" if row.measured else "not measured"
        path = row.module.path or "outside of the model"
        print(f"| {path} | {row.module.direction} | {1e3 * row.predicted:.2f} | {1e3 * row.measured:.2f} | {ratio} |")
    alone = {row.module: row.measured for row in tables["op by op"]}
    whole = sum(alone.values())
    different = [
        f"{' '.join(row.module)}: {1e3 * alone[row.module]:.2f} ms op by op, {1e3 * row.measured:.2f} ms"
        for row in tables["training step"]
        if alone.get(row.module, 0.0) > WORTH_COMPARING * whole
        and abs(row.measured / alone[row.module] - 1) > TOLERANCE
    ]
    print(f"\nmodules whose times differ by more than {100 * TOLERANCE:.0f} %: {'; '.join(different) or 'none'}")
    return 0 if is_good and not different else 1


if __name__ == "__main__":
    sys.exit(main())

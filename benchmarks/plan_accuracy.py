"""How far estimates lie from measurements: memory and time of a step, as `monograph plan` and `inspect` estimate them.

    python benchmarks/plan_accuracy.py recorded            # against steps that were measured on one H200, from results/
    python benchmarks/plan_accuracy.py ranks --ranks 4     # memory against tracked tensor bytes, on gloo ranks here
    python benchmarks/plan_accuracy.py gpu --out accuracy.json    # measures on this GPU, then compares
    python benchmarks/plan_accuracy.py gpu --measure-only --out measured.json    # compares later, on any machine:
    python benchmarks/plan_accuracy.py recorded --measured measured.json

Rates of the table of machines were fitted to the rows marked `fitted`; all others are held out.
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from monograph import strict_json
from monograph.bench import run_modes
from monograph.commands.arguments import RankOptions
from monograph.commands.request import read_request
from monograph.execute.facts import make_facts
from monograph.graph.memory import find_memory
from monograph.machine.choose import choose_machine
from monograph.machine.device import Machine
from monograph.machine.table import MACHINES
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import build_passes
from monograph.plan.depth import find_reduced_depth
from monograph.plan.measure import capture_step, estimate_whole
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.plan.on_ranks import track_peak

GIB = 2**30


@dataclass(frozen=True)
class Setting:
    """A step that can be measured on one GPU."""

    words: str
    ms: float = 0.0
    gib: float = 0.0
    """Measured; 0 where it was not yet."""
    fitted: bool = False


RECORDED = (
    Setting("llama3_bench_1b", 254.6, 33.37, fitted=True),
    Setting("llama3_bench_1b --compile.numerics fast", 239.1, 33.40, fitted=True),
    Setting("deepseek_v3_bench_moe", 200.7, 52.59, fitted=True),
    Setting("deepseek_v3_bench_moe --compile.numerics fast", 179.2, 51.10, fitted=True),
)
"""benchmarks/results/2026-11-17-graph-default-h200.md, the rows of graph mode: none is held out."""
HELD_OUT = tuple(
    Setting(f"{recipe} {flags}".strip())
    for recipe, flags in (
        ("llama3_bench_1b", "--model.n_layers 8"),
        ("llama3_bench_1b", "--training.local_batch_size 1"),
        ("llama3_bench_1b", "--training.local_batch_size 8"),
        ("llama3_bench_1b", "--training.seq_len 8192 --training.local_batch_size 2"),
        ("llama3_bench_1b", "--activation_checkpoint.mode full"),
        ("llama3_bench_1b", "--activation_checkpoint.mode none"),
        ("llama3_bench_1b", "--compile.numerics fast --training.seq_len 2048 --training.local_batch_size 8"),
        ("llama3_bench_1b", "--compile.numerics fast --activation_checkpoint.mode full"),
        ("deepseek_v3_bench_moe", "--model.n_layers 4"),
        ("deepseek_v3_bench_moe", "--training.local_batch_size 2"),
        ("deepseek_v3_bench_moe", "--compile.numerics fast --activation_checkpoint.mode full"),
        ("deepseek_v3_bench_moe", "--compile.numerics fast --training.seq_len 8192 --training.local_batch_size 1"),
        ("qwen3_0_6b", "--training.seq_len 4096 --training.local_batch_size 4 --training.global_batch_size -1"),
    )
)
"""Settings of `gpu`: none was used to fit anything."""
MESHES: dict[str, dict[str, Any]] = {
    "llama3 dp": {"model": "llama3"},
    "llama3 tp2": {"model": "llama3", "tp": 2},
    "qwen3_moe ep2": {"model": "qwen3_moe", "ep": 2},
    "deepseek_v3 dp": {"model": "deepseek_v3"},
    "deepseek_v3 tp2": {"model": "deepseek_v3", "tp": 2},
}


def estimate_step(config: TrainerConfig, machine: Machine) -> tuple[float, float]:
    """ms and GiB of one update of one micro-batch on one device."""
    with torch.device("meta"):
        depth = find_reduced_depth(config.model, config.model.build())
    step = estimate_whole(capture_step(config, machine, depth, world_size=1), config, 1, machine)
    return 1000 * (step.step_seconds + step.optimizer_seconds), step.memory.peak / GIB


def compare_recorded(settings: tuple[Setting, ...], machine: Machine) -> Iterator[dict[str, Any]]:
    """Rows of estimates beside measurements."""
    for setting in settings:
        config = read_request([*setting.words.split(), "--machine", machine.name], RankOptions()).config
        ms, gib = estimate_step(config, machine)
        errors = {"ms_error": ms / setting.ms - 1, "gib_error": gib / setting.gib - 1}
        yield asdict(setting) | {"estimated_ms": ms, "estimated_gib": gib} | errors


def measure_on_gpu(settings: tuple[Setting, ...]) -> Iterator[Setting]:
    """The same settings as this GPU runs them."""
    for setting in settings:
        config = read_request([*setting.words.split(), "--debug.device", "cuda"], RankOptions()).config
        (row,) = run_modes({config.compile.numerics: config}, steps=10, warmup=3)
        assert row.peak_gib is not None
        print(f"{setting.words:96} {row.ms:7.1f} ms {row.peak_gib:6.2f} GiB", flush=True)
        yield Setting(setting.words, row.ms, row.peak_gib)


def compare_ranks(ranks: int) -> Iterator[dict[str, Any]]:
    """Peak of a step by the graph against what its tensors really held, on every rank."""
    with tempfile.TemporaryDirectory() as folder:
        for name, wanted in MESHES.items():
            degrees = {key: value for key, value in wanted.items() if key != "model"}
            config = tiny(str(wanted["model"]), Path(folder), {"compile.mode": "graph", "machine": "cpu"}, **degrees)
            measured = max(pool.run(ranks, track_peak, config))
            mesh = plan_run_mesh(config, ranks)
            with fake_groups(mesh, 0, torch.device("cpu")) as groups:
                source, settings = build_source(config, groups)
                facts = make_facts(source.table, groups, settings)
                passes = build_passes(settings.passes, settings.compile.numerics)
                graph = capture_and_optimize(source, make_example(config, source), facts, passes).graph
                estimated = find_memory(graph).peak_bytes
            yield {"mesh": f"{name} on {ranks} ranks", "estimated": estimated, "measured": measured} | {
                "error": estimated / measured - 1
            }


def main() -> None:
    """Print a table, and write it where asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("recorded", "ranks", "gpu"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--machine", default="", help="of the estimates; by default H200, or this GPU's")
    parser.add_argument("--measured", default="", help="with recorded: the file that gpu --measure-only wrote")
    parser.add_argument("--measure-only", action="store_true")
    parser.add_argument("--out", default="")
    arguments = parser.parse_args()
    if arguments.what == "ranks":
        rows = list(compare_ranks(arguments.ranks))
        for row in rows:
            print(f"{row['mesh']:28} {row['estimated']:>12,} {row['measured']:>12,} {100 * row['error']:+.1f} %")
    elif arguments.measure_only:
        rows = []
        for each in measure_on_gpu(HELD_OUT):
            rows.append(asdict(each))
            write_rows(arguments.out, rows)
    else:
        name = torch.cuda.get_device_name() if arguments.what == "gpu" else "NVIDIA H200"
        machine = choose_machine(arguments.machine or "auto", name).machine
        settings = tuple(measure_on_gpu(HELD_OUT)) if arguments.what == "gpu" else read_settings(arguments.measured)
        rows = list(compare_recorded(settings, MACHINES.get(machine.name, machine)))
        for row in rows:
            times = f"{row['estimated_ms']:7.1f} {row['ms']:7.1f} ms {100 * row['ms_error']:+5.1f} %"
            sizes = f"{row['estimated_gib']:6.2f} {row['gib']:6.2f} GiB {100 * row['gib_error']:+5.1f} %"
            print(f"{row['words']:64} {times}  {sizes}{'  fitted' if row['fitted'] else ''}")
    write_rows(arguments.out, rows)


def read_settings(path: str) -> tuple[Setting, ...]:
    """Those of a file, or the recorded ones."""
    if not path:
        return RECORDED
    return tuple(Setting(**row) for row in strict_json.parse(Path(path).read_text(encoding="utf-8"))["rows"])


def write_rows(path: str, rows: list[dict[str, Any]]) -> None:
    """To a file, if there is one."""
    if path:
        Path(path).write_text(strict_json.dump({"rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

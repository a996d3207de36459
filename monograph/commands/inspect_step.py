"""The part of `monograph inspect` that captures: one fake rank, every pass, and a folder that tells the story."""

import shlex
import time
from pathlib import Path
from typing import Any

import torch

from monograph import strict_json
from monograph.commands.terminal import make_console, print_plain, print_rows, print_title
from monograph.execute.runner import GraphStep
from monograph.graph.cost import H200, Cost
from monograph.graph.diff import diff_texts
from monograph.graph.step_graph import StepGraph
from monograph.log import set_up_log
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.runner import Record, run_passes
from monograph.report.collect import collect_graph, collect_pass
from monograph.report.page import make_page
from monograph.report.units import format_bytes, format_seconds
from monograph.run import build_step, describe, find_device, make_example
from monograph.train.config import TrainerConfig
from monograph.train.numerics import promise_numerics
from monograph.whole_file import write_whole


class PassWriter:
    """Writes the graph after every pass, and what the pass changed."""

    def __init__(self, folder: Path, graph: StepGraph) -> None:
        self.folder, self.count = folder, 0
        self.entries: list[dict[str, Any]] = []
        self.text = graph.text(folded=False)
        (folder / "00-captured.txt").write_text(graph.text(), encoding="utf-8")

    def __call__(self, record: Record, graph: StepGraph) -> None:
        self.count += 1
        if record.status != "ran":
            self.entries.append(collect_pass(record, diff="", files=()))
            return
        _say(f"{record.name}: {record.note} ({format_seconds(record.seconds)})")
        text = graph.text(folded=False)
        diff = diff_texts(self.text, text)
        self.text = text
        names = [f"{self.count:02d}-{record.name}.{ending}" for ending in ("txt", "diff")]
        for name, content in zip(names, (graph.text(), diff), strict=True):
            (self.folder / name).write_text(content, encoding="utf-8")
        self.entries.append(collect_pass(record, diff=diff, files=names))


def inspect_step(config: TrainerConfig, mesh: Mesh, folder: Path, *, recipe: str, words: list[str]) -> int:
    """Capture as rank 0 of the mesh, run the passes, write everything down, print a summary."""
    command = shlex.join(["monograph", "inspect", *words, "--ranks", str(mesh.world_size), "--out", str(folder)])
    set_up_log(level=config.debug.log_level)
    device = find_device(config.debug.device)
    with fake_groups(mesh, 0, device) as groups:
        _say(f"capturing {recipe} as rank 0 of {describe(groups)}")
        start = time.perf_counter()
        step = build_step(config, groups)
        assert isinstance(step, GraphStep), "compile.mode is graph"
        graph = trace_example(step, config)
        seconds = time.perf_counter() - start
        sizes = step.facts().group_sizes
        _say(f"captured {len(graph.nodes):,} nodes in {format_seconds(seconds)}")
        captured = collect_graph(graph, H200, sizes)
        writer = PassWriter(folder, graph)
        records = run_passes(graph, step.build_passes(), step.facts(), watch=writer)
        ran = [record.name for record in records if record.status == "ran"]
        numerics = str(promise_numerics(config, ran=ran, device=device.type))
        told = {"recipe": recipe, "command": command, "capture_seconds": seconds, "numerics": numerics}
        report = {
            "run": describe_run(config, mesh, device) | told,
            "captured": captured,
            "passes": writer.entries,
            "final": collect_graph(graph, H200, sizes),
        }
    write_whole(folder / "report.json", strict_json.dump(report, indent=1) + "\n")
    write_whole(folder / "index.html", make_page(report))
    print_records(records)
    print_plain(f"\nnumerics: {numerics}\n" + "\n".join(list_notes(device)))
    print_plain(f"\npage:   {folder / 'index.html'}\ngraphs: {folder / '00-captured.txt'} and so on")
    return 0


def trace_example(step: GraphStep, config: TrainerConfig) -> StepGraph:
    """Trace with a batch of the right shapes; its numbers do not matter."""
    return step.trace(*make_example(config, step), has_sources=True)


def describe_run(config: TrainerConfig, mesh: Mesh, device: torch.device) -> dict[str, Any]:
    """What was inspected, for the head of the page."""
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
    return {
        "device": device.type,
        "ranks": mesh.world_size,
        "mesh": {axis: getattr(mesh, axis) for axis in axes},
        "local_batch_size": config.training.local_batch_size,
        "seq_len": config.training.seq_len,
        "compute_dtype": config.training.compute_dtype,
        "machine": H200.describe(),
        "notes": list_notes(device),
        "torch": torch.__version__,
    }


def list_notes(device: torch.device) -> list[str]:
    """What a reader should know before trusting a number."""
    notes = [f"Times are estimates for {H200.describe()}.", "Rows are taken to be routed evenly over the experts."]
    if device.type == "cpu":
        notes.append("Captured on a CPU, with its kernels: a GPU's attention may keep less for backward.")
    return notes


def print_records(records: list[Record]) -> None:
    """The passes as a table: what each did, and the cost after it."""
    print_title("Passes", "nodes, collectives, sent, peak memory, exposed time, what was done")
    rows = [("(captured)", *_cells(records[0].before), "")] if records else []
    for record in records:
        if record.status == "ran":
            rows.append((record.name, *_cells(record.after), record.note))
        else:
            rows.append((record.name, "", "", "", "", "", f"{record.status}: {record.note}"))
    print_rows(rows, ("bold cyan", "none", "none", "none", "green", "yellow", "none"))


def _cells(cost: Cost) -> tuple[str, ...]:
    times = format_seconds(cost.exposed_seconds)
    counts = (f"{cost.nodes:,}", f"{cost.collectives:,}")
    return (*counts, format_bytes(cost.moved_bytes), format_bytes(cost.peak_bytes), times)


def _say(text: str) -> None:
    console = make_console(stderr=True)
    if console.is_terminal:
        console.print(text)

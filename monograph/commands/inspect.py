"""`monograph inspect`: capture the step as one fake rank, run every pass, and write a folder that shows each."""

import math
import shlex
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from monograph import strict_json
from monograph.capture.capture import capture
from monograph.commands.inspect_pipeline import inspect_pipeline
from monograph.commands.terminal import print_rows, print_title
from monograph.errors import ConfigError
from monograph.execute.device import use_device
from monograph.execute.facts import make_facts
from monograph.graph.cost import Cost, find_node_costs, measure
from monograph.graph.diff import diff_texts
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.text import join_texts
from monograph.graph.timeline import find_timeline
from monograph.locks.folder_lock import locked_output
from monograph.log import set_up_log
from monograph.machine.choose import AUTO, FALLBACK, find_machine
from monograph.machine.device import Machine
from monograph.models.model import Model
from monograph.parallel.groups import Groups, fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable
from monograph.passes.runner import PassRecord, build_passes, run_passes
from monograph.plurals import counted
from monograph.report.collect import collect_graph, collect_pass
from monograph.report.folder import CAPTURED, PAGE, PREDICTED, ReportFolder
from monograph.report.graph_texts import GraphTexts, collect_excerpts
from monograph.report.page import make_page
from monograph.report.trace import make_trace
from monograph.report.units import format_bytes, format_seconds
from monograph.run import (
    build_source,
    capture_and_optimize,
    find_peak_flops,
    find_run_machine,
    make_example,
)
from monograph.system.console import make_console, print_plain
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.train.numerics import promise_numerics
from monograph.verify.simulate.first import conclude, try_simulation
from monograph.verify.simulate.picture import draw_mesh
from monograph.verify.simulate.run import MeshSimulation


class PassWriter:
    """Writes the graph after every pass, and what the pass changed."""

    def __init__(self, folder: ReportFolder, graph: StepGraph) -> None:
        self.folder, self.count = folder, 0
        self.entries: list[dict[str, Any]] = []
        self.graphs = GraphTexts()
        self.text = self.write(CAPTURED, "captured", graph)

    def __call__(self, record: PassRecord, graph: StepGraph) -> None:
        self.count += 1
        if record.status != "ran":
            self.entries.append(collect_pass(record, diff="", files=()))
            return
        _say(f"{record.name}: {record.note} ({format_seconds(record.seconds)})")
        names = [f"{self.count:02d}-{record.name}.{ending}" for ending in ("txt", "diff")]
        text = self.write(names[0], record.name, graph)
        diff = diff_texts(self.text, text)
        self.text = text
        self.folder.write(names[1], diff)
        self.entries.append(collect_pass(record, diff=diff, files=names))

    def write(self, file: str, version: str, graph: StepGraph) -> str:
        """Write the graph's text with equal blocks folded, add it to the page, and return it unfolded."""
        parts, inner = graph.text_parts(), graph.inner_texts()
        self.graphs.add(version, parts, inner)
        self.folder.write(file, join_texts(parts, inner, folded=True))
        return join_texts(parts, inner, folded=False)


def inspect(config: TrainerConfig, *, out: str, ranks: int, simulate: bool, recipe: str, words: list[str]) -> int:
    """Write the report of one rank's step into a folder."""
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    if simulate and mesh.pp > 1:
        raise ConfigError(
            "--simulate true with a pipeline",
            why="the page of a pipeline shows its schedule, not its mesh",
            do="monograph verify --simulate with the same flags",
        )
    command = shlex.join(["monograph", "inspect", *words, "--ranks", str(mesh.world_size), "--out", out])
    set_up_log(level=config.debug.log_level)
    device = use_device(config.debug.device)
    is_elsewhere = config.machine == AUTO and device.type == "cpu"
    if is_elsewhere:  # a step that is looked at without a GPU is hardly meant to run without one
        config = config.replace(machine=FALLBACK)
    config = target_machine(config, device)
    reason = "no GPU here; --machine NAME" if is_elsewhere else ""
    found = try_simulation(config, mesh) if simulate else None
    shown = {"simulated": draw_mesh(found)} if isinstance(found, MeshSimulation) else {}
    inspect_one = inspect_pipeline if mesh.pp > 1 else partial(inspect_step, shown=shown)
    with locked_output(Path(out)):
        inspect_one(config, mesh, device, begin_folder(out), recipe=recipe, command=command, reason=reason)
    if found is not None:
        print_plain(f"\n{conclude(found, config, instead='--simulate false leaves it out')}")
    return 0


def begin_folder(out: str) -> ReportFolder:
    """The folder, without the files of an earlier report; other files stay."""
    folder = ReportFolder(Path(out))
    try:
        folder.begin()
    except OSError as error:
        why = f"{error.filename or out} cannot be written: {error.strerror or error}"
        raise ConfigError(f"--out {out}", why=why, do="choose another folder") from None
    return folder


def inspect_step(
    config: TrainerConfig,
    mesh: Mesh,
    device: torch.device,
    folder: ReportFolder,
    *,
    recipe: str,
    command: str,
    reason: str,
    shown: Mapping[str, Any],
) -> int:
    """Capture as rank 0 of the mesh, run the passes, write everything down, print a summary; `reason` is why the
    machine of all estimates was chosen, `shown` more for the page."""
    with fake_groups(mesh, 0, device) as groups:
        _say(f"capturing {recipe} as rank 0 of {groups.describe()}")
        start = time.perf_counter()
        source, settings = build_source(config, groups)
        graph = capture(source, make_example(config, source), has_sources=True)
        seconds = time.perf_counter() - start
        facts = make_facts(source.table, groups, settings)
        reason = reason or find_run_machine(config, groups).note
        _say(f"captured {counted(len(graph.nodes), 'node')} in {format_seconds(seconds)}")
        ideal = find_ideal_seconds(config, groups)
        captured = collect_graph(graph, facts, ideal_seconds=ideal)
        writer = PassWriter(folder, graph)
        passes = build_passes(settings.passes, settings.compile.numerics)
        records = run_passes(graph, passes, facts, watch=writer)
        ran = [record.name for record in records if record.status == "ran"]
        numerics = str(promise_numerics(config, ran=ran, device=facts.machine.device))
        final = collect_graph(graph, facts, ideal_seconds=ideal)
        write_trace(graph, facts, folder, f"{recipe}, predicted for {facts.machine.name}")
        peaks = {"a step": final["cost"]["peak_bytes"]}
        if config.needs_evaluation():
            example = make_example(config, source)
            evaluation = capture_and_optimize(source, example, facts, passes, kind="evaluation", is_measured=False)
            peaks["an evaluation"] = measure(evaluation.graph, facts).peak_bytes
        state = count_state_bytes(config, source.table)
        notes = list_notes(device, facts.machine, reason, peaks, state)
        if any("experts" in tag_of(node).path for node in graph.nodes):
            notes.insert(-1, "Assumes balanced experts.")
        report = {
            "run": describe_run(config, mesh, device)
            | {"machine": facts.machine.describe(), "target": facts.machine.device, "notes": notes}
            | {"recipe": recipe, "command": command, "capture_seconds": seconds, "numerics": numerics},
            "captured": captured,
            "passes": writer.entries,
            "final": final,
            "graphs": writer.graphs.to_json(),
            **shown,
        }
        report["code"] = collect_excerpts(writer.graphs.list_sources(), list_saved_sources(captured, final))
    folder.write(PAGE, make_page(report))
    folder.finish(report)
    print_records(records)
    print_plain(f"\nnumerics promised: {numerics}\n" + "\n".join(notes))
    print_plain(f"\npage:   {folder.path / PAGE}\ngraphs: {folder.path / CAPTURED} and so on")
    print_plain(f"trace:  {folder.path / PREDICTED} (ui.perfetto.dev)")
    return 0


def find_ideal_seconds(config: TrainerConfig, groups: Groups) -> float:
    """The time of a micro-batch's useful operations at the peak of all devices; 0 where the peak is not known."""
    mesh, peak = groups.mesh, find_peak_flops(config, groups)
    with torch.device("meta"):
        model: Model = config.model.build()
    tokens = mesh.data_parts * config.training.local_batch_size * config.training.seq_len
    flops = tokens * model.flops(config.training.seq_len).full_attention
    return flops / (peak * mesh.world_size) if peak else 0.0


def write_trace(graph: StepGraph, facts: Facts, folder: ReportFolder, name: str) -> None:
    """The predicted step for trace viewers."""
    inside = graph.module.graph
    timeline = find_timeline(inside, find_node_costs(inside, LikelySizes(inside), facts).seconds)
    folder.write(PREDICTED, strict_json.dump(make_trace(timeline, name=name), is_compact=True) + "\n")


def list_saved_sources(*graphs: dict[str, Any]) -> list[str]:
    """The lines of code that made what is saved and what is alive at the peak."""
    rows = [row for graph in graphs for row in (*graph["saved_rows"], *graph["memory"]["largest_at_peak"])]
    return [row["source"] for row in rows]


def describe_run(config: TrainerConfig, mesh: Mesh, device: torch.device) -> dict[str, Any]:
    """What was inspected, for the head of the page."""
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
    return {
        "captured_on": device.type,
        "ranks": mesh.world_size,
        "mesh": {axis: getattr(mesh, axis) for axis in axes},
        "local_batch_size": config.training.local_batch_size,
        "seq_len": config.training.seq_len,
        "compute_dtype": config.training.compute_dtype,
        "torch": torch.__version__,
    }


def count_state_bytes(config: TrainerConfig, table: ParamTable) -> int:
    """Bytes of the optimizer's state on one rank."""
    elements = sum(math.prod(slot.local_shape) for slot in table.trained)
    return elements * config.plan_optimizer().count_state_bytes(config.training.dtype)


def list_notes(device: torch.device, machine: Machine, reason: str, peaks: Mapping[str, int], state: int) -> list[str]:
    """What a reader should know before trusting a number; `reason` is why this machine was chosen for them, `peaks` are
    the most bytes that each kind of step has in memory, `state` the bytes of the optimizer's state."""
    notes = [
        machine.describe_estimates(reason),
        machine.describe_target(device.type),
    ]
    shown = ", ".join(f"{format_bytes(peak)} in {name}" for name, peak in peaks.items())
    fits = max(peaks.values()) + state <= machine.memory_bytes
    limit = "" if fits else f", more than the {format_bytes(machine.memory_bytes)} of {machine.name}"
    notes.append(f"Estimated peak memory: {shown}; with {format_bytes(state)} of optimizer state{limit}.")
    return notes


def print_records(records: list[PassRecord]) -> None:
    """The passes as a table: what each did, and the cost after it."""
    print_title("Passes", "nodes, collectives, sent, peak memory, exposed time, what was done")
    rows = [("(captured)", *_cells(records[0].before), "")] if records else []
    for record in records:
        if record.status == "ran":
            rows.append((record.name, *_cells(record.after), record.note))
        else:
            rows.append((record.name, "", "", "", "", "", f"{record.status}: {record.note}"))
    print_rows(rows, ("bold cyan", "none", "none", "none", "green", "yellow", "none"))


def _cells(cost: Cost | None) -> tuple[str, ...]:
    assert cost is not None, "costs are asked for here"
    times = format_seconds(cost.exposed_seconds)
    counts = (f"{cost.nodes:,}", f"{cost.collectives:,}")
    return (*counts, format_bytes(cost.moved_bytes), format_bytes(cost.peak_bytes), times)


def _say(text: str) -> None:
    console = make_console(stderr=True)
    if console.is_terminal:
        console.print(text)


def target_machine(config: TrainerConfig, device: torch.device) -> TrainerConfig:
    """The configuration whose capture on `device` is the program of `config.machine`, for looking at, not for running.

    A custom op is the same node wherever it is captured; what is left are choices by device, made here.
    """
    machine = device.type if config.machine == AUTO else find_machine(config.machine).device
    return config.replace(model=config.model.for_device(machine))

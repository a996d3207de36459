"""`monograph inspect` of a pipeline: the schedule as a chart, memory per rank, and the graph of every kind of stage."""

import time
from typing import Any

import torch

from monograph import strict_json
from monograph.capture.block_repeats import describe_block
from monograph.capture.capture import capture
from monograph.capture.chunks import find_source_chunks
from monograph.capture.source import StepSource
from monograph.execute.pipeline.build import make_sources
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.simulate import Simulation, StageCost, simulate
from monograph.passes.overlap.overlap_experts import OverlapExperts
from monograph.passes.runner import build_passes, run_passes
from monograph.plurals import counted
from monograph.report.collect_pipeline import collect_pipeline
from monograph.report.folder import PAGE, PREDICTED, SCHEDULE, ReportFolder
from monograph.report.graph_texts import GraphTexts, collect_excerpts
from monograph.report.page import make_pipeline_page
from monograph.report.pipeline_cost import estimate_stage
from monograph.report.trace import make_pipeline_trace
from monograph.report.units import format_bytes, format_seconds
from monograph.run import plan_pipeline
from monograph.system.console import print_plain
from monograph.train.config import TrainerConfig

OVERLAP = OverlapExperts.name()


def inspect_pipeline(
    config: TrainerConfig,
    mesh: Mesh,
    device: torch.device,
    folder: ReportFolder,
    *,
    recipe: str,
    command: str,
    reason: str,
) -> int:
    """Capture every kind of stage once, simulate the schedule, write the report and print a summary; `reason` is why
    the machine of all estimates was chosen."""
    with fake_groups(mesh, 0, device) as groups:
        start = time.perf_counter()
        pipeline = plan_pipeline(config, groups)
        plan, schedule, settings = pipeline.plan, pipeline.schedule, pipeline.settings
        _, stages = make_sources(pipeline, groups, tuple(range(plan.count)))
        passes = build_passes(settings.passes, settings.compile.numerics)
        span = 1 + mesh.dp_replicate * mesh.shards
        known: dict[str, tuple[StageCost, dict[str, str]]] = {}
        costs, notes, graphs = [], [], GraphTexts()
        for number in range(plan.count):
            found = stages[number]
            kind = describe_stage(found.source)
            if kind not in known:
                facts = found.facts(groups, settings)
                graph = capture(found.source, found.inputs, has_sources=True)
                records = run_passes(graph, passes, facts, is_measured=False)
                done = {record.name: record.note for record in records if record.status == "ran"}
                folder.write(f"stage-{number:02d}.txt", graph.text())
                graphs.add(f"stage {number}", graph.text_parts(), graph.inner_texts())
                cost = estimate_stage(graph, facts, span=span, state_ratio=config.find_state_ratio())
                known[kind] = cost, done
                print_plain(f"stage {number}: {counted(len(graph.nodes), 'node')}, {plan.stages[number][0]} and on")
                if OVERLAP in done:
                    print_plain(f"  {OVERLAP}: {done[OVERLAP]}")
            costs.append(known[kind][0])
            notes.append(known[kind][1])
        seconds = time.perf_counter() - start
    simulation = simulate(schedule, costs)
    report = collect_pipeline(plan, schedule, costs, notes, simulation)
    machine = settings.machine
    report |= {"graphs": graphs.to_json(), "code": collect_excerpts(graphs.list_sources())}
    report["run"] = {
        "recipe": recipe,
        "command": command,
        "ranks": mesh.world_size,
        "schedule": schedule.name,
        "micro_batches": schedule.micro_batches,
        "machine": machine.name,
        "target": machine.device,
        "notes": [machine.describe_estimates(reason), machine.describe_target(device.type)],
        "inspect_seconds": seconds,
        "captured_stages": len(known),
    }
    folder.write(SCHEDULE, schedule.text())
    write_report(report, simulation, folder, f"{recipe}, predicted for {machine.name}")
    print_summary(report, simulation, folder)
    print_plain("\n".join(report["run"]["notes"]))
    return 0


def write_report(report: dict[str, Any], simulation: Simulation, folder: ReportFolder, name: str) -> None:
    """The page, the predicted trace, and the report itself, which lists all files."""
    folder.write(PAGE, make_pipeline_page(report))
    trace = make_pipeline_trace(simulation, name=name)
    folder.write(PREDICTED, strict_json.dump(trace, is_compact=True) + "\n")
    folder.finish(report)


def describe_stage(source: StepSource) -> str:
    """What decides the graph of a stage, up to the numbers of its blocks."""
    assert source.stage is not None
    chunked = find_source_chunks(source)
    units = {path: source.model.get_submodule(path) for path in source.stage.units}
    kinds = [(str(describe_block(unit, source.table, path)), unit in chunked) for path, unit in units.items()]
    return f"{source.stage.is_first} {source.stage.is_last} {kinds}"


def print_summary(report: dict[str, Any], simulation: Simulation, folder: ReportFolder) -> None:
    """The ranks with their memory and bubble, and where the rest is."""
    print_plain(f"\n{'rank':>4} {'stages':>10} {'peak':>12} {'at':>8} {'bubble':>8}")
    for row in report["ranks"]:
        peak = format_bytes(row["peak_bytes"])
        print_plain(f"{row['rank']:>4} {row['stages']:>10} {peak:>12} {row['peak_action']:>8} {row['bubble']:>8.1%}")
    print_plain(f"\nan update: {format_seconds(simulation.seconds)}, {simulation.bubble:.1%} of it bubble (estimated)")
    print_plain(f"page: {folder.path / PAGE}\nschedule: {folder.path / SCHEDULE}")
    print_plain(f"trace: {folder.path / PREDICTED} (ui.perfetto.dev)")

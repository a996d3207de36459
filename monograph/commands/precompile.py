"""`monograph precompile`: capture the step as fake ranks of a mesh, and write one artifact for all of them."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from monograph.axes import Axis
from monograph.capture.capture import GraphKind, capture
from monograph.compat.compiler import compiler_folder
from monograph.execute.artifact.fields import STEP, is_step, name_graph
from monograph.execute.artifact.folder import check_target, write_artifact
from monograph.execute.artifact.keys import find_fingerprint, read_key
from monograph.execute.artifact.make import (
    CannotPrecompile,
    make_custom_kernels,
    make_files,
    make_sections,
)
from monograph.execute.base import StepSettings
from monograph.execute.custom_kernels import KernelCall, find_calls, find_tunable_calls, find_updates
from monograph.execute.device import deterministic_kernels, find_device, use_device
from monograph.execute.pipeline.build import StageSource, make_sources
from monograph.execute.tuned_kernels import render_for_artifact, tune_kernels
from monograph.graph.encode import GraphFileError
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.locks.folder_lock import locked_output
from monograph.log import set_up_log
from monograph.models.attention_kernel_config import uses_flex
from monograph.parallel.fit import plan_schedule
from monograph.parallel.groups import Groups, fake_groups, find_first_difference
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable
from monograph.passes.base import Pass
from monograph.passes.runner import OptimizedGraph, PassRecord, build_passes, run_passes
from monograph.plurals import counted
from monograph.private_temporary import private_temporary
from monograph.report.units import format_bytes, format_seconds
from monograph.run import build_source, make_example, plan_pipeline
from monograph.system.console import print_plain
from monograph.train.command_line import CommandLine
from monograph.train.config import TrainerConfig
from monograph.train.flex_limits import has_compiler
from monograph.train.layout import count_micro_batches, count_ranks, plan_run_mesh

COMPILERS = ("compile_regions", "compile_whole", "compile_flex")
"""Passes that make code: it is made once, and is no part of what two ranks compare."""


@dataclass(frozen=True)
class RankCapture:
    """What one rank captured."""

    graphs: Mapping[str, OptimizedGraph]
    texts: Mapping[str, str]
    """Of the graphs before anything was compiled."""
    table: ParamTable
    facts: Facts
    calls: Sequence[KernelCall] = ()
    """Of kernels of our own, by the step and by the optimizer."""
    tunable: Sequence[KernelCall] = ()
    """Of ops with kernels that may have settings to tune."""


def precompile_command(config: TrainerConfig, *, out: str, ranks: int, overwrite: bool, words: list[str]) -> int:
    """Write the artifact that every rank of the mesh loads."""
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    with locked_output(Path(out)):
        check_target(Path(out), overwrite=overwrite)
        return precompile_and_report(config, mesh, Path(out), words=words, overwrite=overwrite)


def precompile_and_report(
    config: TrainerConfig, mesh: Mesh, target: Path, *, words: list[str], overwrite: bool = False
) -> int:
    """Capture, compare with another rank, write, and say what was written."""
    set_up_log(level=config.debug.log_level)
    start = time.perf_counter()
    try:
        files = precompile(config, mesh, target, overwrite=overwrite)
    except OSError as error:
        raise CannotPrecompile(f"{target} cannot be written", why=str(error), do="choose another --out") from None
    except GraphFileError as error:
        raise CannotPrecompile("the captured step cannot be written to a file", why=str(error)) from None
    size = sum(len(content) for content in files.values())
    regions = sum(name.startswith("regions/") for name in files)
    print_plain(
        f"{target}: {counted(len(files), 'file')}, {format_bytes(size)}, {counted(regions, 'compiled part')}, "
        f"for {counted(mesh.world_size, 'rank')}"
    )
    print_plain(f"compiled for {describe_device(find_device(config.debug.device))}")
    print_plain(f"made in {format_seconds(time.perf_counter() - start)}")
    key = read_key(config.compile.artifact_key_file)
    print_plain(f"signed with key {find_fingerprint(key)}" if key else f"unsigned; monograph artifact sign {target}")
    line = CommandLine(words, mesh.world_size if mesh.world_size > 1 else 0)
    print_plain(f"train from it: {line.render({'compile.artifact': str(target)})}")
    return 0


def describe_device(device: torch.device) -> str:
    """What an artifact that is made on this device runs on."""
    if device.type == "cpu":
        return "a CPU"
    major, minor = torch.cuda.get_device_capability(device)
    return f"a GPU of compute capability {major}.{minor}, made on {torch.cuda.get_device_name(device)}"


def precompile(
    config: TrainerConfig, mesh: Mesh, target: Path, *, overwrite: bool = False, rank: int = 0
) -> dict[str, bytes]:
    """Write the artifact as `rank` sees it, in a pipeline as each stage's rank in its place; refuse when another rank
    sees another step."""
    device = use_device(config.debug.device)
    if uses_flex(config.model) and device.type == "cpu":
        raise CannotPrecompile(
            "model.attention.kernel is flex and the device is a CPU",
            why="graph files hold calls of listed operators, not the functions of FlexAttention; on a GPU these are "
            "compiled code",
            do="precompile on a GPU, or train without an artifact",
        )
    graphs: dict[str, OptimizedGraph] = {}
    files: dict[str, bytes] = {}
    calls: list[KernelCall] = []
    tunable: list[KernelCall] = []
    with private_temporary("monograph-compiler-") as folder:
        compiler = compiler_folder(folder) if has_compiler(config, device.type) else nullcontext()
        with deterministic_kernels(config.debug.deterministic), compiler:
            for stage, first, peers in find_stages(config, mesh):
                one, other = first + rank % peers, first + peers - 1 - rank % peers
                captured = capture_as(one, config, mesh, device, is_compiled=True, stage=stage)
                if other != one:
                    again = capture_as(other, config, mesh, device, is_compiled=False, stage=stage)
                    check_rank_free(captured, one, again, other)
                graphs |= captured.graphs
                files |= make_files(captured.graphs, captured.facts, folder)
                calls += captured.calls
                tunable += captured.tunable
        if config.compile.tune_kernels:
            tune_kernels(dict.fromkeys(tunable), device)
        files |= make_custom_kernels(list(dict.fromkeys(calls)), render_for_artifact(device))
        sections = make_sections(config, mesh, captured.table, device, graphs, captured.facts.machine)
    key = read_key(config.compile.artifact_key_file)
    write_artifact(target, sections, files, key=key, overwrite=overwrite)
    return files


def find_stages(config: TrainerConfig, mesh: Mesh) -> list[tuple[int | None, int, int]]:
    """What is captured: each stage with the first of the ranks that run it, and how many those are."""
    if mesh.pp == 1:
        return [(None, 0, mesh.world_size)]
    peers = mesh.stride(Axis.PP)
    schedule = plan_schedule(config.parallelism, count_micro_batches(config, mesh))
    return [(stage, place * peers, peers) for stage, place in enumerate(schedule.stage_ranks)]


def capture_as(
    rank: int, config: TrainerConfig, mesh: Mesh, device: torch.device, *, is_compiled: bool, stage: int | None = None
) -> RankCapture:
    """The graphs of one fake rank, or of one of its stages: training and evaluation."""
    with fake_groups(mesh, rank, device) as groups:
        table, settings, found = find_source(config, groups, stage)
        source = found.source
        facts = found.facts(groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        texts: dict[str, str] = {}
        graphs = {}
        calls: list[KernelCall] = []
        kinds: tuple[GraphKind, ...] = ("step", "evaluation")
        for kind in kinds:
            name = name_graph(kind, stage)
            graph = capture(source, found.inputs_of(kind), kind=kind)

            def look(seen: StepGraph, name: str = name) -> None:
                texts[name] = seen.text(folded=False)
                if is_step(name):
                    calls.extend(find_calls(seen, is_compiled=has_compiler(config, device.type)))

            records = improve(graph, passes, facts, look, is_compiled=is_compiled)
            graphs[name] = OptimizedGraph(graph, records)
        step = graphs[name_graph(STEP, stage)].graph
        calls += find_calls(step)
        if config.plan_optimizer().is_single_pass:
            calls += find_updates(step, settings.update_state, settings.sum_dtype)
        return RankCapture(graphs, texts, table, facts, list(dict.fromkeys(calls)), find_tunable_calls(step))


def find_source(
    config: TrainerConfig, groups: Groups, stage: int | None
) -> tuple[ParamTable, StepSettings, StageSource]:
    """What is captured: the whole model, or one stage; and the table of the whole model."""
    if stage is None:
        source, settings = build_source(config, groups)
        return source.table, settings, StageSource(source, make_example(config, source), {}, {})
    pipeline = plan_pipeline(config, groups)
    _, sources = make_sources(pipeline, groups, (stage,))
    return pipeline.whole.table, pipeline.settings, sources[stage]


def improve(
    graph: StepGraph, passes: Sequence[Pass], facts: Facts, look: Callable[[StepGraph], None], *, is_compiled: bool
) -> list[PassRecord]:
    """Run the passes; `look` sees the graph before the first compiler."""
    indices = [index for index, each in enumerate(passes) if each.name() in COMPILERS]
    before = passes[: min(indices)] if indices else passes

    def watch(record: PassRecord, seen: StepGraph) -> None:
        if record.name == before[-1].name():
            look(seen)

    return run_passes(graph, passes if is_compiled else before, facts, watch=watch)


def check_rank_free(one: RankCapture, rank: int, other: RankCapture, other_rank: int) -> None:
    """One artifact serves all ranks only if all ranks run the same step."""
    for name, text in one.texts.items():
        if text != other.texts[name]:
            raise CannotPrecompile(
                f"ranks {rank} and {other_rank} capture different graphs of {name}",
                why=find_first_difference(text, other.texts[name]),
                do="let compute depend on a rank through its coordinates only, never through its number",
            )

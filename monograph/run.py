"""The whole flow: config -> model -> parallelize -> step -> train loop. Each arrow is a return value.

`build_graph_step` is its center: capture, run_passes and build_program, one after the other on one screen.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from monograph.capture.capture import GraphKind, capture
from monograph.capture.source import StepSource
from monograph.capture.step import OutputProbe, buffers_of
from monograph.compat.compiler import start_workers
from monograph.config.configurable import check_config
from monograph.config.json_form import dump_json
from monograph.config.references import import_on_call
from monograph.execute.artifact.load import Artifact
from monograph.execute.artifact.open import WantedGraph, open_artifact, read_graphs
from monograph.execute.base import MeshStep, MetricSums, StepSettings, find_sequence_part
from monograph.execute.build import build_program, load_or_build_kernels, make_gradients, make_recorder
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.device import (
    check_allocator,
    check_recordable,
    deterministic_kernels,
    use_device,
    warn_of_slow_matmuls,
)
from monograph.execute.facts import make_facts
from monograph.execute.graph_step import Evaluation, GraphStep
from monograph.execute.outputs import LossBuffer, StepOutputBuffers
from monograph.execute.pipeline.build import (
    PipelineSource,
    add_stages,
    find_wanted,
    group_by_stage,
    plan_model_stages,
    start_pipeline_step,
)
from monograph.execute.pipeline.step import PipelineStep
from monograph.execute.sharded import ShardedStep, make_shards
from monograph.execute.step_cache.cache import StepCache, open_cache
from monograph.execute.tuned_kernels import load_tuned_kernels
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.log import get_log, set_up_log
from monograph.machine.choose import MachineChoice, choose_machine
from monograph.models.freeze import freeze
from monograph.models.model import Model, find_scalars
from monograph.parallel.apply import parallelize
from monograph.parallel.check_plan import check_plan
from monograph.parallel.context_gather import decide_gather
from monograph.parallel.fit import plan_schedule
from monograph.parallel.flight import FOLDER as FLIGHT_FOLDER
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.param_table import ParamTable, build_table
from monograph.passes.base import Pass
from monograph.passes.runner import OptimizedGraph, build_passes, run_passes
from monograph.train.build_model import build_model
from monograph.train.command_line import CommandLine
from monograph.train.config import TrainerConfig
from monograph.train.flex_limits import check_flex_device, has_compiler
from monograph.train.float8_limits import check_quantized
from monograph.train.folder import RunFolder, reserved_folder
from monograph.train.garbage import paused_gc
from monograph.train.layout import count_micro_batches, plan_run_mesh
from monograph.train.numerics import promise_numerics
from monograph.train.open_data import find_once, open_data
from monograph.train.out_of_memory import find_holders, memory_explained, suggest_less
from monograph.train.preflight import check_before_start, check_checkpoint
from monograph.train.signals import StoppedOnRequest, watch_for_stop
from monograph.train.startup import Startup
from monograph.train.step_settings import make_settings
from monograph.train.summary import Summary, print_summary
from monograph.train.trainer import Trainer
from monograph.watch.training_page import training_page

if TYPE_CHECKING:
    from monograph.execute.fsdp2 import Fsdp2Step
else:  # DTensor and FSDP2 take a second
    Fsdp2Step = import_on_call("monograph.execute.fsdp2:Fsdp2Step")
log = get_log("run")


def build_step(
    config: TrainerConfig,
    groups: Groups,
    startup: Startup | None = None,
    *,
    probe: OutputProbe | None = None,
    uses_cache: bool = False,
) -> MeshStep:
    """What `train`, `evaluate`, `verify` and `bench` run: one path that cannot drift.

    A captured step has the tensors that `probe` finds as further outputs; with `uses_cache` it may be an earlier run's.
    """
    startup = startup or Startup()
    load_tuned_kernels(groups.device)
    with startup.phase("graph"):
        cache = open_cache(config, config.compile, groups) if uses_cache else None
    if groups.mesh.pp > 1:
        return build_pipeline(config, groups, startup, cache)
    if config.compile.mode == "graph":
        return build_graph_step(config, groups, startup, probe, cache)
    with startup.phase("model"):
        model, table, settings = build_parallel_model(config, groups)
        kind = ShardedStep if config.plan_fsdp() == "graph" else Fsdp2Step
        return kind(model, table, groups, settings)


def build_graph_step(
    config: TrainerConfig, groups: Groups, startup: Startup, probe: OutputProbe | None, cache: StepCache | None
) -> GraphStep:
    """model -> capture -> passes -> program; an artifact's graphs, or kept ones, replace capture and passes.

    Which gathered parameters and activations are freed after forward is decided by passes, too.
    """
    artifact: Artifact | None = None
    graphs: Mapping[GraphKind, OptimizedGraph] = {}
    if config.compile.artifact:
        with startup.phase("artifact"):
            artifact = open_artifact(config, config.compile, groups, find_run_machine(config, groups).machine)
    with startup.phase("model"):
        source, settings = build_source(config, groups, probe=probe)
    facts, inputs = make_facts(source.table, groups, settings), make_example(config, source)
    kinds: tuple[GraphKind, ...] = ("step", "evaluation") if config.needs_evaluation() else ("step",)
    wanted = [WantedGraph(kind, facts, inputs) for kind in kinds]
    if artifact is not None:
        with startup.phase("artifact"):
            graphs = dict(zip(kinds, read_graphs(artifact, config.compile, source.table, wanted, groups), strict=False))
    with startup.phase("graph"), paused_gc():
        if not graphs:
            artifact = None
            graphs = {each.kind: find_or_capture(config, source, settings, groups, each, cache) for each in wanted}
            check_quantized(config, graphs["step"].records)
        for kind, found in graphs.items():
            groups.check_same(f"the graph of the {kind}", found.graph.digest(), text=found.graph.text)
        load_or_build_kernels([graphs["step"].graph], settings, groups, artifact)
        weights = CastWeightCache(source.parameters)
        gradients = make_gradients(source.parameters, graphs["step"], source.reduce_dtype)
        outputs = StepOutputBuffers(gradients, MetricSums())
        recorder = make_recorder(settings, groups)
        program = build_program(graphs["step"].graph, inputs, outputs, weights, recorder)
        evaluation = None
        if "evaluation" in kinds:
            losses = LossBuffer()
            forward = build_program(graphs["evaluation"].graph, inputs, losses, weights, recorder)
            evaluation = Evaluation(forward, losses)
    return GraphStep(source, groups, graphs, program, evaluation, outputs, weights, artifact)


def build_pipeline(
    config: TrainerConfig, groups: Groups, startup: Startup, cache: StepCache | None = None
) -> PipelineStep:
    """model -> stages -> capture -> passes -> programs, each for this rank's stages alone; op by op in eager mode.

    An artifact's graphs, or kept ones, replace capture and passes, as without a pipeline.
    """
    artifact: Artifact | None = None
    if config.compile.artifact:
        with startup.phase("artifact"):
            artifact = open_artifact(config, config.compile, groups, find_run_machine(config, groups).machine)
    with startup.phase("model"):
        pipeline = plan_pipeline(config, groups)
        settings = pipeline.settings
        step, sources = start_pipeline_step(pipeline, groups)
    kinds: tuple[GraphKind, ...] = ("step", "evaluation") if config.needs_evaluation() else ("step",)
    wanted = find_wanted(sources, kinds, groups, settings)
    graphs: list[OptimizedGraph] = []
    if artifact is not None:
        with startup.phase("artifact"):
            graphs = read_graphs(artifact, config.compile, pipeline.whole.table, wanted, groups)
    with startup.phase("graph"), paused_gc():
        if not graphs:
            artifact = None
        if not graphs and config.compile.mode == "graph":
            for each in wanted:
                stage = sources[each.stage or 0].source
                graphs.append(find_or_capture(config, stage, settings, groups, each, cache))
        recorder = make_recorder(settings, groups) if graphs else None
        add_stages(step, sources, group_by_stage(wanted, graphs), settings, groups, recorder)
        if graphs:
            load_or_build_kernels([found.graph for found in step.captured], settings, groups, artifact)
        step.artifact = artifact
    log.info("pipeline: %s over stages %s", pipeline.schedule.name, pipeline.plan.describe())
    return step


def plan_pipeline(config: TrainerConfig, groups: Groups) -> PipelineSource:
    """The model with its stages and their schedule; parameters and graphs come later, for one rank's stages alone."""
    source, settings = build_source(config, groups, has_parameters=False)
    with torch.device("meta"):
        whole: Model = config.model.build()
    schedule = plan_schedule(config.parallelism, count_micro_batches(config, groups.mesh))
    firsts = config.parallelism.pipeline_stages
    plan = plan_model_stages(whole, schedule.stages, firsts, seq_len=config.training.seq_len)
    return PipelineSource(source, make_example(config, source), plan, schedule, settings)


def find_or_capture(
    config: TrainerConfig,
    source: StepSource,
    settings: StepSettings,
    groups: Groups,
    wanted: WantedGraph,
    cache: StepCache | None,
) -> OptimizedGraph:
    """A graph that an earlier run has kept, or captured and optimized here, and kept for later runs."""
    if cache is not None and (found := cache.load(wanted, source.table)) is not None:
        return found
    passes = build_passes(settings.passes, settings.compile.numerics)
    # A bench counts FLOPs of the graph; once a compiler has run it has to read them from the passes' records.
    is_measured = has_compiler(config, groups.device.type)
    of = (source, wanted.inputs, wanted.facts, passes)
    captured = capture_and_optimize(*of, kind=wanted.kind, is_measured=is_measured)
    if cache is not None:
        cache.store(wanted, source.table, captured)
    return captured


def capture_and_optimize(
    source: StepSource,
    inputs: StepInputs,
    facts: Facts,
    passes: Sequence[Pass],
    *,
    kind: GraphKind = "step",
    is_measured: bool = True,
    is_checked: bool = True,
) -> OptimizedGraph:
    """The step, or the forward alone, captured for these inputs; the passes then change the graph in place."""
    start = time.perf_counter()
    graph = capture(source, inputs, kind=kind)
    seconds = time.perf_counter() - start
    records = run_passes(graph, passes, facts, is_measured=is_measured, is_checked=is_checked)
    return OptimizedGraph(graph, records, seconds)


def build_parallel_model(config: TrainerConfig, groups: Groups) -> tuple[Model, ParamTable, StepSettings]:
    """The model sharded for the mesh, the table of its parameters, and how its step computes."""
    check_flex_device(config, groups.device.type)
    model = build_model(config, groups.device)
    choice = find_run_machine(config, groups)
    if choice.note:
        log.info("costs are estimated for %s, and MFU is left out: %s", choice.machine.name, choice.note)
    settings = make_settings(config, model.plan_parameters(), choice.machine)
    if not groups.is_fake:
        warn_of_slow_matmuls(groups.device, settings.compute_dtype)
    plan = model.parallel_plan()
    check_plan(model, plan, groups.mesh)
    table = build_table(model, plan, groups.mesh)
    tokens, dtype = config.training.local_batch_size * config.training.seq_len, config.training.compute_dtype
    mesh = decide_gather(groups.mesh, config.model, tokens=tokens, dtype=dtype, machine=choice.machine)
    parallelize(model, plan, mesh, groups.coords())
    return model, table, settings


def build_source(
    config: TrainerConfig, groups: Groups, *, probe: OutputProbe | None = None, has_parameters: bool = True
) -> tuple[StepSource, StepSettings]:
    """What graph mode captures from: the parallel model, with this rank's shards."""
    if groups.device.type == "cuda" and has_compiler(config, "cuda") and not config.compile.artifact:
        start_workers()  # early, because starting them takes seconds; on a CPU they would compete with the model
    model, table, settings = build_parallel_model(config, groups)
    source = StepSource(
        model=model,
        table=table,
        parameters=make_shards(table, groups, settings) if has_parameters else {},
        buffers=buffers_of(model),
        coords=groups.coords(),
        compute_dtype=settings.compute_dtype,
        reduce_dtype=settings.reduce_dtype,
        part=find_sequence_part(groups),
        seed=settings.seed,
        overlap=settings.compile.expert_overlap,
        probe=probe,
    )
    return source, settings


def find_run_machine(config: TrainerConfig, groups: Groups) -> MachineChoice:
    """What the run plans for and measures against: rank 0's on every rank, so that all passes decide alike."""
    device = groups.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    choice: MachineChoice = groups.broadcast_object(choose_machine(config.machine, name))
    return choice


def find_peak_flops(config: TrainerConfig, groups: Groups) -> float:
    """The peak of one device that MFU is a part of; 0 where it is not known."""
    return config.metrics.peak_flops or find_run_machine(config, groups).peak_flops(config.training.compute_dtype)


def make_example(config: TrainerConfig, source: StepSource) -> StepInputs:
    """Inputs of the shapes that training reads; their values do not matter."""
    model, device = source.model, source.coords.device
    sizes = {"batch": config.training.local_batch_size, "sequence": config.training.seq_len}
    batch = {name: torch.zeros(spec.shape(**sizes), dtype=spec.dtype) for name, spec in model.batch_spec.items()}
    inputs = {name: value.to(device) for name, value in model.step_inputs(batch, source.part).items()}
    ones = {name: torch.ones((), dtype=torch.int64, device=device) for name in find_scalars(model)}
    return source.inputs(inputs, ones)


def build_trainer(
    config: TrainerConfig, groups: Groups, startup: Startup, folder: RunFolder, *, uses_cache: bool = False
) -> Trainer:
    """Data first, because its mistakes are the user's and should show before minutes go into a model."""
    with startup.phase("data"):
        data, validation_sets = open_data(config, groups)
    step = build_step(config, groups, startup, uses_cache=uses_cache)
    promise = promise_numerics(config, ran=step.ran_passes, device=groups.device.type)
    folder.write_numerics(promise)
    with startup.phase("model"):
        with torch.device("meta"):
            whole: Model = config.model.build()
        freeze(whole, config.training.freeze)
        flops = whole.flops(config.training.seq_len)
        count = sum(parameter.numel() for parameter in whole.parameters())
    log.info("model: %s parameters on %s", f"{count:,}", groups.describe())
    log.info("numerics: %s", promise)
    with startup.phase("trainer"), memory_explained(groups.device, find_holders(step), do=suggest_less(config)):
        trainer: Trainer = config.build(
            step=step,
            data=data,
            validation_sets=validation_sets,
            folder=folder,
            startup=startup,
            flops=flops,
            peak_flops=find_peak_flops(config, groups),
            groups=groups,
        )
        trainer.load()
    return trainer


def train(config: TrainerConfig, *, uses_cache: bool = False) -> Summary:
    """Train as the config says, as one of the ranks a launcher started; the library's form of `monograph train`.

    `uses_cache` allows `compile.cache`, as `monograph train` does: for programs that change no loaded code.
    """
    startup = Startup()
    with watch_for_stop() as stop, ExitStack() as stack:
        with stop.at_once():
            check_config(config)
            stack.enter_context(deterministic_kernels(config.debug.deterministic))
            mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
            check_before_start(config)
            with startup.phase("set-up"):
                device = use_device(config.debug.device)
                check_recordable(config.compile.cuda_graph, device)
                if config.compile.mode == "graph" and config.compile.cuda_graph != "off":
                    check_allocator(device, mesh.world_size)
            joined = joined_groups(
                mesh,
                device,
                timeout_seconds=config.parallelism.timeout_seconds,
                files_timeout_seconds=config.checkpoint.timeout_seconds,
                flight_folder=Path(config.job.dump_folder) / FLIGHT_FOLDER,
                shares_gpus=config.debug.share_gpus,
            )
            with startup.phase("groups" if mesh.world_size > 1 else "set-up"):
                groups = stack.enter_context(joined)
            with startup.phase("set-up"):
                groups.check_same("the configuration", dump_json(config))
                if groups.has_peers:
                    find_once(groups, lambda: check_checkpoint(config))
                set_up_log(level=config.debug.log_level, holds=True)
                folder = stack.enter_context(reserved_folder(config, groups))
                if config.metrics.page and groups.rank == 0:
                    stack.enter_context(training_page(folder.path))
            fewer = suggest_less(config)
            with memory_explained(device, {}, do=fewer):
                trainer = build_trainer(config, groups, startup, folder, uses_cache=uses_cache)
        try:
            with memory_explained(device, find_holders(trainer.step, trainer.optimizer), do=fewer):
                return trainer.train()
        finally:
            trainer.step.close()


def train_command(config: TrainerConfig, line: CommandLine) -> int:
    """`monograph train`: train, then tell a person what happened and what to try next."""
    set_up_log(level=config.debug.log_level)
    try:
        summary = train(config, uses_cache=True)
    except StoppedOnRequest as stopped:
        if not stopped.do:
            raise
        raise StoppedOnRequest(stopped.what, do=f"to continue: {line.render({'checkpoint.load': 'latest'})}") from None
    is_quiet = config.metrics.progress == "off" and config.debug.log_level == "warning"
    if summary.is_rank_zero and not is_quiet:
        print_summary(summary, config, line)
    return 0

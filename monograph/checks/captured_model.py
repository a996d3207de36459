"""Small models to try a pass on: captured once as the only rank, and once as a rank of a fake mesh."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from monograph.bench import draw_batch
from monograph.capture.capture import capture
from monograph.capture.source import StepSource
from monograph.config.configurable import check_config
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.execute.base import MetricSums
from monograph.execute.build import build_program, make_gradients
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.facts import make_facts
from monograph.execute.outputs import StepOutputBuffers
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import Groups, fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.check import clone_graph
from monograph.passes.config import PassesConfig
from monograph.passes.runner import OptimizedGraph, build_passes, run_passes
from monograph.recipes.catalog import load_recipe
from monograph.run import build_source, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

DEBUG_MODELS = ("llama3_debugmodel", "qwen3_debugmodel_moe", "deepseek_v3_debugmodel")
"""Dense; with experts in every block; with latent attention, a dense first block and shared experts."""
AT_MOST = {"model.n_layers": 3, "training.seq_len": 32, "training.local_batch_size": 2}
"""What a model is shrunk to: the first, a middle and the last block are all different to a pass."""
SET = {
    "compile.mode": "graph",
    "parallelism.fsdp": "auto",
    "debug.device": "cpu",
    "debug.deterministic": False,
    "training.global_batch_size": -1,
}
ON_MESH = {
    "parallelism.data_parallel_shard_degree": 2,
    "parallelism.tensor_parallel_degree": 2,
    "training.compute_dtype": "bfloat16",
}
"""With casts, which cost nothing where nothing is computed."""
RANKS = (0, 3)
"""The first and the last rank of ON_MESH."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class CheckedStep:
    """A step before any pass, and what passes may know about its mesh."""

    graph: StepGraph
    facts: Facts


@dataclass(frozen=True)
class CapturedModel:
    """One model, as every check needs it."""

    name: str
    alone: CheckedStep
    """As the only rank: this one can run."""
    on_mesh: CheckedStep
    """As any rank of `mesh`: this one can only be looked at."""
    mesh: Mesh
    source: StepSource
    inputs: StepInputs
    """Random tokens."""
    baseline: Mapping[str, Tensor]
    """What the step computes after the passes that run by default: `loss`, then the gradient of each slot."""


def capture_models(names: Sequence[str]) -> list[CapturedModel]:
    """Capture these recipes, shrunk, and run each once."""
    return [capture_model(name, shrink(name)) for name in names]


def shrink(name: str) -> TrainerConfig:
    """A recipe with few layers and short sequences, on one rank, in graph mode."""
    return shrink_config(load_recipe(name))


def shrink_config(config: TrainerConfig) -> TrainerConfig:
    """The same run with few layers and short sequences, on one rank, in graph mode."""
    now = {leaf.path: leaf.value for leaf in find_leaves(config)}
    least = {path: min(now[path], value) for path, value in AT_MOST.items() if path in now}
    ones = {path: 1 for path in now if path.startswith("parallelism.") and path.endswith("_degree")}
    for path, value in {**least, **ones, **SET}.items():
        config = replace_leaf(config, path, value)
    check_config(config)
    return config


def capture_model(name: str, config: TrainerConfig) -> CapturedModel:
    """The step of the only rank, with weights and random tokens to run it on, and that of rank 0 of a mesh."""
    with alone() as groups:
        step, source, example = _capture(config, groups)
        generator = torch.Generator().manual_seed(config.debug.seed)
        batch = draw_batch(config, source.model.batch_spec, generator)
        inputs = replace(example, batch=source.model.step_inputs(batch, source.part))
        graph = clone_graph(step.graph)
        records = run_passes(graph, build_passes(PassesConfig()), step.facts, is_measured=False)
        baseline = run_step(source, inputs, OptimizedGraph(graph, records))
    for path, value in ON_MESH.items():
        config = replace_leaf(config, path, value)
    mesh = plan_run_mesh(config, RANKS[-1] + 1)
    with as_rank(RANKS[0], mesh) as groups:
        on_mesh, _, _ = _capture(config, groups)
    return CapturedModel(name, step, on_mesh, mesh, source, inputs, baseline)


@contextmanager
def alone() -> Iterator[Groups]:
    """The groups of a run on one rank, which can communicate."""
    with joined_groups(Mesh(), CPU) as groups:
        yield groups


@contextmanager
def as_rank(rank: int, mesh: Mesh) -> Iterator[Groups]:
    """A fake rank, to whoever asks torch or the environment."""
    names = ("RANK", "LOCAL_RANK")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, str(rank)))
    try:
        with fake_groups(mesh, rank, CPU) as groups:
            yield groups
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _capture(config: TrainerConfig, groups: Groups) -> tuple[CheckedStep, StepSource, StepInputs]:
    source, settings = build_source(config, groups)
    inputs = make_example(config, source)
    return CheckedStep(capture(source, inputs), make_facts(source.table, groups, settings)), source, inputs


def run_step(source: StepSource, inputs: StepInputs, optimized: OptimizedGraph) -> dict[str, Tensor]:
    """The loss and the gradient of each slot, of a step as some passes left it."""
    parameters = source.parameters
    cache = CastWeightCache(parameters)
    outputs = StepOutputBuffers(make_gradients(parameters, optimized, source.reduce_dtype), MetricSums())
    program = build_program(optimized.graph, inputs, outputs, cache, None)
    cache.refresh()
    try:
        program.run(inputs)
        return {"loss": outputs.copy_loss(), **outputs.gradients.taken()}
    finally:
        program.close()
        for parameter in parameters.values():
            parameter.grad = None

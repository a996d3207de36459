"""What one rank does for benchmarks/multi_rank.py: a file of its own, because ranks import it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monograph.commands.precompile import precompile
from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.errors import MonographError
from monograph.execute.device import deterministic_kernels, use_device
from monograph.execute.graph_step import GraphStep
from monograph.parallel.groups import Groups, joined_groups
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients, apply_update
from monograph.verify.run import verify
from tests.execute.updates import buffers_of, digest, read_batches

MESHES: dict[str, tuple[int, dict[str, Any]]] = {
    "dp2": (2, {}),
    "tp2": (2, {"parallelism.tensor_parallel_degree": 2}),
    "ep2": (2, {"parallelism.expert_parallel_degree": 2}),
    "dp2 tp2 ep2": (4, {"parallelism.tensor_parallel_degree": 2, "parallelism.expert_parallel_degree": 2}),
    "hsdp 2x2": (4, {"parallelism.data_parallel_replicate_degree": 2}),
    "cp2": (2, {"parallelism.context_parallel_degree": 2, "model.mask": "document"}),
    "cp2 ulysses": (
        2,
        {"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_method": "ulysses"},
    ),
    "cp2 latent": (2, {"parallelism.context_parallel_degree": 2, "parallelism.context_parallel_gather": "latent"}),
    "cp2 tp2": (4, {"parallelism.context_parallel_degree": 2, "parallelism.tensor_parallel_degree": 2}),
}
LLAMA, QWEN, DEEPSEEK = "llama3_debugmodel", "qwen3_debugmodel_moe", "deepseek_v3_debugmodel"
GRAPH = {"compile.mode": "graph", "compile.cuda_graph": "off"}
CHUNKED = {f"compile.expert_overlap.{key}": value for key, value in {"modules": "layers.*.moe"}.items()}
UPDATES = 4
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One check of one model on a mesh."""

    check: str
    recipe: str


@dataclass(frozen=True)
class Outcome:
    """What a case showed on one rank; an empty problem is a pass."""

    problem: str
    seconds: float
    note: str = ""


def make_config(recipe: str, mesh: str, device: str, changes: Changes) -> TrainerConfig:
    """The recipe on a mesh: bf16, short sequences, few layers."""
    fixed = {
        "training.steps": UPDATES,
        "model.n_layers": 3 if recipe == DEEPSEEK else 2,
        "training.seq_len": 64,
        "training.local_batch_size": 4,
        "training.compute_dtype": "bfloat16" if device == "cuda" else "float32",
        "parallelism.fsdp": "graph",
        "parallelism.timeout_seconds": 60,
        "debug.device": device,
        "debug.deterministic": True,
        "debug.log_level": "warning",
        "validator.interval": 0,
        **MESHES[mesh][1],
    }
    config = load_recipe(recipe)
    for path, value in {**fixed, **changes}.items():
        config = replace_leaf(config, path, value)
    check_config(config)
    return config


def run_updates(config: TrainerConfig, groups: Groups) -> tuple[dict[str, Any], bool]:
    """Every loss, norm and final tensor of a few updates, and whether a CUDA graph was replayed."""
    step = build_step(config, groups)
    optimizer = config.optimizer.build(parameters=step.parameters, weight_cache=step.weight_cache)
    found: dict[str, Any] = {}
    for number, batch in enumerate(read_batches(config, step, UPDATES), 1):
        loss = add_gradients(step, [batch])
        done = apply_update(step, optimizer, loss=loss, lr=0.001, max_norm=1.0)
        found |= {f"{number} loss": loss.item(), f"{number} norm": done.grad_norm.item()}
    found |= digest({name: value.cpu() for name, value in {**step.parameters, **buffers_of(step)}.items()})
    is_replayed = isinstance(step, GraphStep) and bool(getattr(step.program, "recordings", None))
    step.close()
    return found, is_replayed


@contextmanager
def on_rank(mesh: str, device: str) -> Iterator[Groups]:
    """This rank's groups."""
    planned = plan_run_mesh(make_config(DEEPSEEK, mesh, device, {}), int(os.environ["WORLD_SIZE"]))
    with deterministic_kernels(True), joined_groups(planned, use_device(device), timeout_seconds=60) as groups:
        yield groups


def check_mesh(mesh: str, device: str, folder: str, cases: Sequence[Case]) -> list[Outcome]:
    """All cases of one mesh, one after the other, in one set of process groups."""
    with on_rank(mesh, device) as groups:
        return [run_case(case, mesh, device, Path(folder), groups) for case in cases]


def run_case(case: Case, mesh: str, device: str, folder: Path, groups: Groups) -> Outcome:
    """One case; an error that all ranks see is its outcome."""
    start = time.perf_counter()
    try:
        problem, note = CHECKS[case.check](case.recipe, mesh, device, folder, groups)
    except MonographError as error:
        problem, note = f"{type(error).__name__}: {error}", ""
    if device == "cuda":
        torch.cuda.empty_cache()
    return Outcome(problem, time.perf_counter() - start, note)


def compare_runs(configs: Sequence[TrainerConfig], groups: Groups) -> tuple[str, str]:
    """Whether all runs leave the same bits as the first."""
    (wanted, _), *others = [run_updates(config, groups) for config in configs]
    for found, _ in others:
        different = [name for name, value in wanted.items() if found.get(name) != value]
        if different or found.keys() != wanted.keys():
            return f"{len(different)} of {len(wanted)} differ, first {different[:1]}", ""
    replayed = sum(is_replayed for _, is_replayed in others)
    return "", f"{len(wanted)} values equal" + (f", {replayed} as a CUDA graph" if replayed else "")


def check_bits(recipe: str, mesh: str, device: str, folder: Path, groups: Groups) -> tuple[str, str]:
    """Graph mode, and where every size is fixed the whole step as one CUDA graph, against eager."""
    ways: list[Changes] = [{"compile.mode": "eager"}, GRAPH]
    if device == "cuda" and (recipe == LLAMA or groups.mesh.ep == 1):
        ways.append({**GRAPH, "compile.cuda_graph": "require"})
    problem, note = compare_runs([make_config(recipe, mesh, device, way) for way in ways], groups)
    if not problem and len(ways) == 3 and "CUDA graph" not in note:
        return "no CUDA graph was replayed", note
    return problem, note


def check_verify(recipe: str, mesh: str, device: str, folder: Path, groups: Groups) -> tuple[str, str]:
    """The plan in graph mode against one device, in fp32."""
    config = make_config(recipe, mesh, device, {**GRAPH, "training.compute_dtype": "float32"})
    verdict = verify(config, groups)
    if verdict is None or verdict.is_equal:
        return "", "" if verdict is None else f"largest difference {verdict.all.worst():.1e}"
    return f"step {verdict.step}: {verdict.blame}", ""


def check_overlap(recipe: str, mesh: str, device: str, folder: Path, groups: Groups) -> tuple[str, str]:
    """Chunked experts: eager, called chunk by chunk in a graph, and split by a pass with exchanges under compute."""
    trace = {**CHUNKED, "compile.expert_overlap.strategy": "trace"}
    ways: list[Changes] = [
        {**trace, "compile.mode": "eager"},
        {**GRAPH, **trace},
        {**GRAPH, **CHUNKED, "compile.expert_overlap.strategy": "graph"},
    ]
    return compare_runs([make_config(recipe, mesh, device, way) for way in ways], groups)


def check_artifact(recipe: str, mesh: str, device: str, folder: Path, groups: Groups) -> tuple[str, str]:
    """One artifact, made by another process, against capturing in every rank."""
    target = artifact_folder(folder, recipe, mesh)
    ways: list[Changes] = [GRAPH, {**GRAPH, "compile.artifact": str(target)}]
    return compare_runs([make_config(recipe, mesh, device, way) for way in ways], groups)


def artifact_folder(folder: Path, recipe: str, mesh: str) -> Path:
    """Where the artifact of a case lies."""
    return folder / f"{recipe}-{mesh}".replace(" ", "-")


def make_artifact(recipe: str, mesh: str, device: str, folder: str) -> None:
    """Precompile, as one process that is no rank of the mesh."""
    config = make_config(recipe, mesh, device, GRAPH)
    precompile(config, plan_run_mesh(config, MESHES[mesh][0]), artifact_folder(Path(folder), recipe, mesh))


CHECKS: dict[str, Callable[..., tuple[str, str]]] = {
    "bits": check_bits,
    "verify": check_verify,
    "overlap": check_overlap,
    "artifact": check_artifact,
}

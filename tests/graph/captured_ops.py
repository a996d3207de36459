"""Which operators captures and passes produce: `python -m tests.graph.captured_ops --write` renews the list.

A case is a tiny model on a fake mesh. Its step is captured once and goes through several pipelines of passes. The list
that graph files are read with (monograph/graph/allowed_ops.py) is what all cases together produce.
"""

import argparse
import functools
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from monograph.execute.device import deterministic_kernels
from monograph.graph import allowed_ops
from monograph.graph.facts import Facts, SaveMode, SavePolicy
from monograph.graph.step_graph import StepGraph
from monograph.models.config import LossConfig
from monograph.parallel.groups import fake_groups
from monograph.passes.check import clone_graph
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.order import ORDER
from monograph.passes.runner import build_passes, run_passes
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU
from tests.kit.capture import prepare
from tests.kit.tiny import MODELS, WITH_EXPERTS, tiny

PIPELINES = {
    "default": PassesConfig(),
    "every option": PassesConfig(
        offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=64),
        on=("narrow_gradients", "merge_matmuls", "cache_cast_weights", "fuse_swiglu_epilogue"),
    ),
    "full recomputation": PassesConfig(),
    "no pass": PassesConfig(off=tuple(ORDER)),
}
"""What runs on every captured step, by name. Compilers are left out: what they are given becomes code, not nodes."""
BFLOAT16 = {"training.compute_dtype": "bfloat16"}
FUSED = {**BFLOAT16, "model.kernels": "fused", "model.mask": "document"}
GROUPED = {"model.moe.experts.backend": "grouped_mm"}
MESHES: dict[str, dict[str, int]] = {
    "1": {},
    "dp2 tp2": {"shard": 2, "tp": 2},
    "dp2x2": {"replicate": 2, "shard": 2},
    "cp2 tp2": {"shard": 1, "cp": 2, "tp": 2},
    "ep2": {"shard": 2, "ep": 2},
    "dp2 tp2 ep4": {"shard": 2, "tp": 2, "ep": 4},
    "dp2 tp2 ep2 etp2": {"shard": 2, "tp": 2, "ep": 2, "etp": 2},
}
BALANCE = ("coefficient", "group_coefficient", "group_traffic_coefficient", "z_coefficient")
OVERLAP = {"training.local_batch_size": 4, "compile.expert_overlap.modules": "layers.*.moe"}
TRACE, GRAPH = ({**OVERLAP, "compile.expert_overlap.strategy": strategy} for strategy in ("trace", "graph"))
SEQ = {**GRAPH, "compile.expert_overlap.chunk_dim": "seq"}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "reference attention": ("llama3", "1", {"model.attention.kernel": "reference"}),
    "exchanged sequences": ("qwen3_moe", "cp2 tp2", {"parallelism.context_parallel_method": "ulysses"}),
    "gathered latents": ("deepseek_v3", "cp2 tp2", {"parallelism.context_parallel_gather": "latent"}),
    "documents and dropout": ("qwen3", "dp2 tp2", {"model.mask": "document", "model.dropout": 0.1}),
    "plain kernels in bf16": ("deepseek_v3", "ep2", {**BFLOAT16, "model.kernels": "plain"}),
    "fused kernels in fp32": ("deepseek_v3", "dp2 tp2 ep4", {"model.kernels": "fused"}),
    "experts one by one": ("qwen3_moe", "ep2", {"model.moe.experts.backend": "loop"}),
    "grouped experts": ("deepseek_v3", "1", {**BFLOAT16, **GROUPED}),
    "loss in one slice": ("llama3", "1", {"model.loss": LossConfig(chunk_tokens=4096)}),
    "bf16 weights": ("llama3", "dp2 tp2", {**BFLOAT16, "training.dtype": "bfloat16"}),
    "bf16 gradients": ("qwen3", "dp2 tp2", {**BFLOAT16, "parallelism.reduce_dtype": "bfloat16"}),
    "weights stay gathered": ("qwen3_moe", "ep2", {"parallelism.reshard_after_forward": False}),
    "deterministic": ("deepseek_v3", "ep2", {"debug.deterministic": True}),
    "softmax router": (
        "deepseek_v3",
        "1",
        {
            "model.moe.router.score": "softmax",
            "model.moe.router.group_score": "max",
            "model.moe.router.norm": False,
            "model.moe.router.expert_bias": False,
            "model.moe.router.bias_update_rate": 1e-3,
            "model.attention.q_lora_rank": 0,
        },
    ),
    "balance of sequences": (
        "deepseek_v3",
        "ep2",
        {f"model.moe.balance.{name}": 0.1 for name in BALANCE},
    ),
    "balance over the mesh": (
        "qwen3_moe",
        "dp2 tp2 ep4",
        {
            "model.moe.balance.coefficient": 0.1,
            "model.moe.balance.scope": "global",
            "model.moe.balance.times_top_k": True,
        },
    ),
    "balance of micro-batches": (
        "deepseek_v3",
        "1",
        {"model.moe.balance.coefficient": 0.1, "model.moe.balance.scope": "micro_batch"},
    ),
    "balanced router": ("qwen3_moe", "ep2", {"model.moe.router.force_balance": True}),
    "chunks in the trace": ("qwen3_moe", "ep2", TRACE),
    "chunks by a pass": ("deepseek_v3", "ep2", GRAPH),
    "chunks of sequences": ("qwen3_moe", "dp2 tp2 ep4", {**SEQ, **BFLOAT16, **GROUPED, "model.kernels": "fused"}),
    "chunks of blocks": ("qwen3_moe", "ep2", {**GRAPH, "compile.expert_overlap.modules": "layers.*"}),
}


@dataclass(frozen=True)
class Case:
    """One captured step."""

    model: str
    mesh: str
    changes: Mapping[str, Any] = field(default_factory=dict)


def list_cases() -> dict[str, Case]:
    """Every family on every mesh with torch's ops and with custom ops, and the variants."""
    cases: dict[str, Case] = {}
    for model in MODELS:
        for mesh in MESHES:
            if "ep" in mesh and model not in WITH_EXPERTS:
                continue
            grouped = GROUPED if model in WITH_EXPERTS else {}
            cases[f"{model} {mesh}"] = Case(model, mesh)
            if mesh != "dp2x2":
                cases[f"{model} {mesh} fused"] = Case(model, mesh, {**FUSED, **grouped})
    return cases | {name: Case(*variant) for name, variant in VARIANTS.items()}


CASES = list_cases()
FEW = ("qwen3_moe dp2 tp2 ep4 fused",)
"""Which a short test looks at."""


def make_config(case: Case) -> TrainerConfig:
    """The checked configuration of a case."""
    layers = 2 if case.model == "deepseek_v3" else 1  # its first block is dense
    changes = {"compile.mode": "graph", "parallelism.fsdp": "graph", "model.n_layers": layers, **case.changes}
    parallel = {key.partition(".")[2]: value for key, value in changes.items() if key.startswith("parallelism.")}
    own = {key: value for key, value in changes.items() if not key.startswith("parallelism.")}
    with tempfile.TemporaryDirectory() as folder:
        return tiny(case.model, Path(folder), own, **MESHES[case.mesh], **parallel)


@functools.cache
def capture_case(name: str, *, is_forward: bool = False) -> tuple[StepGraph, Facts]:
    """The captured step of a case before any pass, and the facts of its mesh; shared, so change copies only."""
    case = CASES[name]
    config = make_config(case)
    degrees = MESHES[case.mesh]
    world = math.prod(degrees.get(axis, 1) for axis in ("replicate", "shard", "cp", "tp"))
    with (
        deterministic_kernels(config.debug.deterministic),
        fake_groups(plan_run_mesh(config, world), 0, CPU) as groups,
    ):
        prepared = prepare(config, groups)
        return prepared.capture("evaluation" if is_forward else "step"), prepared.facts


def find_graphs(name: str, pipelines: Mapping[str, PassesConfig] = PIPELINES) -> Iterator[tuple[str, StepGraph, Facts]]:
    """The graphs of a case: its step after every pipeline, and its evaluation after the default one."""
    for pipeline, config in pipelines.items():
        graph, facts = capture_case(name)
        mode: SaveMode = "full" if pipeline == "full recomputation" else "selective"
        graph, facts = clone_graph(graph), replace(facts, is_single_pass=True, activations=SavePolicy(mode=mode))
        run_passes(graph, build_passes(config), facts, is_measured=False)
        yield pipeline, graph, facts
    graph, facts = capture_case(name, is_forward=True)
    graph = clone_graph(graph)
    run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
    yield "evaluation", graph, facts


def find_ops(graph: StepGraph) -> set[str]:
    """What the nodes of a graph call, as graph files name it."""
    return {allowed_ops.name_of(node.target) for node in graph.nodes if node.op == "call_function"}


def find_all_ops() -> list[str]:
    """What all cases produce; `getitem` and arithmetic on sizes first, then operators by library."""
    found: set[str] = set()
    for name in CASES:
        for _, graph, _ in find_graphs(name):
            found |= find_ops(graph)
        capture_case.cache_clear()
        print(f"{name}: {len(found)} so far", flush=True)
    return sorted(found, key=lambda op: (op.count("."), op))


def write_list(found: list[str]) -> None:
    """Put the operators between the marks of the list."""
    path = Path(allowed_ops.__file__)
    lines = "".join(f'        "{op}",\n' for op in found)
    text = re.sub(r"(# generated\n).*?( *# end of generated\n)", rf"\g<1>{lines}\g<2>", path.read_text(), flags=re.S)
    path.write_text(text)


def main() -> None:
    """Print the list, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew monograph/graph/allowed_ops.py")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = find_all_ops()
    print("\n".join(found))
    if options.write:
        write_list(found)


if __name__ == "__main__":
    main()

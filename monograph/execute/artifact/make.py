"""From captured graphs to the files of an artifact. Same graphs, same bytes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from monograph.compat.compiler import save_compiled
from monograph.compat.triton_cache import take_kernels, triton_folder
from monograph.config.configurable import BaseConfig
from monograph.errors import MonographError
from monograph.execute.artifact.compare import describe_groups, describe_mesh, find_own_code, resolve_config
from monograph.execute.artifact.describe import (
    describe_inputs,
    describe_machine,
    describe_records,
    describe_table,
)
from monograph.execute.artifact.fields import OWN_KERNELS, is_step, name_part
from monograph.execute.artifact.machine import describe_here
from monograph.execute.custom_kernels import KernelCall, build_calls, calls_to_data
from monograph.graph.encode import GraphFileError
from monograph.graph.facts import Facts
from monograph.graph.file import find_parts, graph_from_data, graph_to_data, parse_graph_file
from monograph.graph.refuse import GraphError
from monograph.graph.step_graph import StepGraph
from monograph.graph.verify_read import check_read_graph
from monograph.machine.device import Machine
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable
from monograph.passes.runner import OptimizedGraph
from monograph.private_temporary import private_temporary

KERNELS = (".so",)
"""Endings of what a compiler leaves in its folder and loading needs again; Triton's kernels are inside of the code."""


CUSTOM_CALLS = "own/calls.json"
"""What the kernels of custom ops are called with."""
TUNED = "own/tuned.json"
"""The settings that kernels of custom ops were tuned to, and for which kind of GPU."""


class CannotPrecompile(MonographError):
    """A step that cannot be written down."""


def make_custom_kernels(calls: Sequence[KernelCall], tuned: bytes | None = None) -> dict[str, bytes]:
    """Name -> content: the kernels of custom ops, what they are called with, and the settings in use, which they are
    built for; nothing where there is no GPU."""
    with private_temporary("monograph-kernels-") as folder:
        with triton_folder(folder):
            build_calls(calls)
        kernels = take_kernels(folder)
    if not kernels:
        return {}
    content = json.dumps(calls_to_data(calls), separators=(",", ":"), allow_nan=False).encode()
    settings = {} if tuned is None else {TUNED: tuned}
    return {CUSTOM_CALLS: content, **settings, **{f"{OWN_KERNELS}{name}": kernel for name, kernel in kernels.items()}}


def make_files(graphs: Mapping[str, OptimizedGraph], facts: Facts, compiler_folder: Path) -> dict[str, bytes]:
    """Name -> content: each graph as data and as text, the code of each part, the kernels that code needs."""
    files: dict[str, bytes] = {}
    for name, captured in graphs.items():
        data = graph_to_data(captured.graph)
        files[f"{name}.json"] = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
        files[f"{name}.txt"] = captured.graph.text().encode()
        check_round_trip(name, captured.graph, facts, files[f"{name}.json"])
        for part, module in find_parts(captured.graph).items():
            files[name_part(name, part)] = _save(module)
    if any(find_parts(captured.graph) for captured in graphs.values()):
        for path in sorted(compiler_folder.rglob("*")):
            if path.suffix in KERNELS and path.is_file():
                files[f"kernels/{path.relative_to(compiler_folder).as_posix()}"] = path.read_bytes()
    return files


def _save(module: Any) -> bytes:
    with private_temporary("monograph-part-") as folder:
        path = folder / "part.bin"
        save_compiled(module.code, path)
        return path.read_bytes()


def check_round_trip(name: str, graph: StepGraph, facts: Facts, content: bytes) -> None:
    """What was written must read back as the same graph, and as one that a run may use, before anyone relies on it."""
    found = graph_from_data(parse_graph_file(content), find_parts(graph))
    try:
        check_read_graph(found, facts, is_forward=not is_step(name))
    except (GraphError, GraphFileError) as error:
        raise CannotPrecompile(
            f"the graph of {name} could not be used as it would be read back", why=str(error)
        ) from None
    if found.digest() != graph.digest():
        raise CannotPrecompile(f"the graph of {name} reads back as another one", why="this is a bug; please report it")


def make_sections(
    config: BaseConfig,
    mesh: Mesh,
    table: ParamTable,
    device: torch.device,
    graphs: Mapping[str, OptimizedGraph],
    machine: Machine,
) -> dict[str, Any]:
    """What the manifest says about the artifact; about the machine only if a pass decided by it."""
    is_planned = any(record.reads_machine for captured in graphs.values() for record in captured.records)
    parts = {name: list(find_parts(captured.graph)) for name, captured in graphs.items()}
    return {
        "config": resolve_config(config, mesh),
        "mesh": describe_mesh(mesh),
        "groups": describe_groups(mesh),
        "table": describe_table(table),
        "inputs": {name: describe_inputs(captured.graph.inputs) for name, captured in graphs.items()},
        "passes": {name: describe_records(captured.records) for name, captured in graphs.items()},
        "digests": {name: captured.graph.digest() for name, captured in graphs.items()},
        "parts": parts,
        "machine": describe_machine(
            device, is_compiled=any(parts.values()), planned_for=machine if is_planned else None
        ),
        **describe_here(find_own_code(config)),
    }

"""What an artifact and a run must have in common besides the configuration, as JSON: table, inputs, machine."""

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from monograph.compat.compiler import find_cuda_driver
from monograph.execute.artifact.machine import find_processor
from monograph.graph.signature import InputSpec
from monograph.machine.device import Machine
from monograph.parallel.param_table import ParamTable, Slot
from monograph.passes.runner import PassRecord

PLANNED_FOR = "planned_for"
"""Of a machine's fields in a manifest: before them stands what they are for."""


def describe_table(table: ParamTable) -> dict[str, dict[str, Any]]:
    """Every stored parameter: names, shapes, and along which dims it is cut."""
    return {slot.name: _describe_slot(slot) for slot in table}


def _describe_slot(slot: Slot) -> dict[str, Any]:
    cuts = [f"{cut.axis.value} along dim {cut.dim}" for cut in (*slot.cuts, slot.shard)]
    return {
        "names": list(slot.names),
        "shape": list(slot.shape),
        "local_shape": list(slot.local_shape),
        "cuts": cuts,
        "unit": slot.unit,
        "order": slot.order,
    }


def describe_inputs(specs: Iterable[InputSpec]) -> dict[str, str]:
    """Every input by kind and name, in order: `float32[8, 64] strides [64, 1] on cpu`."""
    return {
        f"{index:04d} {spec.kind.value}/{spec.name}": f"{str(spec.dtype).removeprefix('torch.')}{list(spec.shape)} "
        f"strides {list(spec.stride)} on {spec.device}"
        for index, spec in enumerate(specs)
    }


def describe_records(records: Sequence[PassRecord]) -> list[dict[str, Any]]:
    """What the passes did; not how long it took, which is different every time."""
    names = ("name", "status", "note", "options", "added", "removed", "moved")
    return [{name: getattr(record, name) for name in names} for record in records]


def describe_machine(device: torch.device, *, is_compiled: bool, planned_for: Machine | None = None) -> dict[str, Any]:
    """What the step's code is made for: a graph that runs op by op fits any processor of its kind.

    A graph in which a pass decided by the rates of a machine is also made for that machine.
    """
    found: dict[str, Any] = {"device": device.type}
    if planned_for is not None:
        planned = json.loads(
            json.dumps(dataclasses.asdict(planned_for), allow_nan=False)
        )  # as it is read: tuples become lists
        found |= {f"{PLANNED_FOR}.{name}": value for name, value in planned.items()}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        found |= {"capability": f"{major}.{minor}", "cuda": torch.version.cuda, "driver": find_cuda_driver()}
    if is_compiled:
        found["matmul_precision"] = torch.get_float32_matmul_precision()
    if is_compiled and device.type == "cpu":
        found |= {
            "processor": find_processor(),
            "threads": torch.get_num_threads(),
            "installation": [sys.prefix, str(Path(torch.__file__).parent)],
        }
    return found

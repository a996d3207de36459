"""Machines as JSON files, written by `monograph machine measure`, read for `--machine FILE.json`; without torch."""

import json
import sys
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError, did_you_mean
from monograph.machine.device import Machine
from monograph.system.foreign_json import UnusableFile, read_json
from monograph.whole_file import write_output

_MAX_BYTES = 1 << 20
_MAX_NAME = 100
_MAY_BE_ZERO = (
    *("collective_latency_us", "kernel_latency_us", "link_step_us", "network_step_us"),
    *("grouped_matmul_fraction", "float8_matmul_fraction"),
)


def read_machine(path: Path) -> Machine:
    """The machine that a JSON file describes: an object with the fields of `Machine`, those with a default optional."""
    try:
        content = read_json(path, kind=object, max_bytes=_MAX_BYTES, allow_nan=True)  # NaN is refused by its field
    except OSError as error:
        raise ConfigError(f"machine is {path}", why=f"it cannot be read: {error.strerror}") from None
    except UnusableFile as error:
        raise ConfigError(f"machine is {path}", why=error.why) from None
    names = [field.name for field in fields(Machine)]
    if not isinstance(content, dict):
        raise ConfigError(f"machine is {path}", why="it must hold one object", do=f"fields: {', '.join(names)}")
    for name in content:
        if name not in names:
            do = did_you_mean(name[:_MAX_NAME], names)
            raise ConfigError(f"{path} has the field {name!r:.80}", why="no machine has it", do=do)
    missing = [each.name for each in fields(Machine) if each.default is MISSING and each.name not in content]
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(missing)}", why=f"a machine has {', '.join(names)}")
    for name, value in content.items():
        _check_field(path, name, value)
        if name.endswith("_points"):
            content[name] = tuple((size, fraction) for size, fraction in value)
    return Machine(**content)


def _check_field(path: Path, name: str, value: Any) -> None:
    if name == "name":
        is_right, wanted = isinstance(value, str) and value != "" and value.isprintable(), "a text"
    elif name == "device":
        is_right, wanted = value in ("cuda", "cpu"), "cuda or cpu"
    elif name == "devices_per_node":
        is_right, wanted = type(value) is int and value >= 1, "a whole number >= 1"
    elif name.endswith("_points"):
        is_right, wanted = _is_curve(value), "a list of [size, fraction], sizes ascending, fractions > 0 and <= 1"
    else:
        low_is_allowed = name in _MAY_BE_ZERO
        is_right = _is_number(value) and (value > 0 or (low_is_allowed and value == 0))
        wanted = f"a finite number {'>=' if low_is_allowed else '>'} 0"
        if name.endswith("_fraction"):
            is_right, wanted = is_right and value <= 1, f"a number {'>=' if low_is_allowed else '>'} 0 and <= 1"
    if not is_right:
        raise ConfigError(f"{path}: {name} is {value!r:.80}", why=f"it must be {wanted}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _is_curve(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        return False
    if not all(_is_number(number) for each in value for number in each):
        return False
    sizes = [size for size, _ in value]
    return all(size > 0 for size in sizes) and sizes == sorted(set(sizes)) and all(0 < part <= 1 for _, part in value)


def write_machine(machine: Machine, path: Path) -> None:
    """Write the JSON file that `read_machine` reads."""
    write_output(path, json.dumps(asdict(machine), indent=2, allow_nan=False) + "\n")

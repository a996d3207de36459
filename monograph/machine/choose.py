"""The machine of a run: named, read from a file, or that of its device. Loads without torch."""

import os
from dataclasses import dataclass
from pathlib import Path

from monograph.errors import ConfigError, find_nearest
from monograph.machine.device import Machine
from monograph.machine.file import read_machine
from monograph.machine.table import CPU, MACHINES, detect_machine

AUTO = "auto"
"""The value of `--machine` that stands for the device a run is on."""
FALLBACK = "H100"
"""What estimates are made for where the device is not in the table."""


def find_machine(name_or_path: str) -> Machine:
    """The machine of a name, in upper or lower case, or of a JSON file with the fields of `Machine`."""
    for name, machine in MACHINES.items():
        if name.lower() == name_or_path.lower():
            return machine
    if name_or_path.endswith(".json") or os.sep in name_or_path:
        return read_machine(Path(name_or_path))
    nearest = find_nearest(name_or_path.upper(), MACHINES)
    raise ConfigError(
        f"machine is {name_or_path!r}",
        why=f"there is no machine of that name; there are {', '.join(MACHINES)}",
        do=f"did you mean {nearest}?" if nearest else f"write one of them, {AUTO}, or the path of a .json file",
    )


@dataclass(frozen=True)
class MachineChoice:
    """The machine that a run plans for, and how far it is the one it runs on."""

    machine: Machine
    device_name: str
    is_known: bool
    """Whether the machine was named, or the device is in the table."""

    @property
    def note(self) -> str:
        """Why the machine is not that of the device; empty when it is, or was named."""
        return "" if self.is_known else f"{self.device_name!r} is not in the table; --machine NAME or FILE.json"

    def peak_flops(self, dtype: str) -> float:
        """The peak that MFU is a part of; 0 where it is unknown, and MFU is left out."""
        return self.machine.peak_flops(dtype) if self.is_known and self.machine != CPU else 0.0


def choose_machine(wanted: str, device_name: str) -> MachineChoice:
    """The machine of `--machine`, where auto is that of the device, or FALLBACK for a device that is not known."""
    if wanted != AUTO:
        return MachineChoice(find_machine(wanted), device_name, is_known=True)
    found = detect_machine(device_name)
    return MachineChoice(found or MACHINES[FALLBACK], device_name, is_known=found is not None)

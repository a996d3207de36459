"""What decides a captured step, as data: two runs with equal keys capture the same graph and run the same passes.

The whole configuration counts, but for what cannot change a step (`MAY_DIFFER`, as for artifacts); this package by its
source, packages by version, and all code of a user's that is loaded, with what it may read from the environment.
"""

import hashlib
import json
import os
import platform
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from monograph.config.configurable import BaseConfig
from monograph.config.sources import find_loaded_sources, find_packages
from monograph.execute.artifact.compare import (
    IS_SINGLE_PASS,
    describe_groups,
    describe_mesh,
    find_own_code,
    flatten,
    reason_to_differ,
    resolve_config,
)
from monograph.execute.artifact.describe import describe_inputs, describe_machine, describe_table
from monograph.execute.artifact.machine import describe_here
from monograph.execute.artifact.open import WantedGraph
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable

_QUOTED = re.compile(r"""["']([A-Za-z_][A-Za-z0-9_]*)(?=["'{%])""")
_OF_A_LAUNCHER = re.compile(
    "RANK|WORLD_SIZE|(LOCAL|GROUP|ROLE)_(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|(TORCHELASTIC|SLURM)_.*"
)
"""Variables that differ from rank to rank or from job to job: a graph is the same on all of them."""


@dataclass(frozen=True)
class StepKey:
    """A key, and the name of the entry that has it."""

    data: dict[str, Any]

    @cached_property
    def digest(self) -> str:
        """Equal exactly for equal keys."""
        return hashlib.sha256(json.dumps(self.data, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]


def describe_run(config: BaseConfig, groups: Groups) -> dict[str, Any]:
    """The part of a key that all graphs of a run share."""
    resolved = resolve_config(config, groups.mesh)
    compared = {path: value for path, value in flatten(resolved) if not reason_to_differ(path)}
    return {
        "config": compared | {IS_SINGLE_PASS: resolved.get("optimizer", {}).get(IS_SINGLE_PASS)},
        "mesh": describe_mesh(groups.mesh),
        "groups": describe_groups(groups.mesh),
        "machine": describe_machine(groups.device, is_compiled=True),
        "torch": [torch.__version__, torch.version.git_version],
        "python": [platform.python_implementation(), platform.python_version()],
        **describe_here(find_own_code(config)),
        "packages": find_packages(),
        **_describe_loaded(),
    }


def make_key(run: dict[str, Any], wanted: WantedGraph, table: ParamTable) -> StepKey:
    """The key of one graph of a run."""
    graph = {
        "name": wanted.name,
        "table": describe_table(table),
        "inputs": describe_inputs(wanted.inputs.specs()),
        "facts": repr(wanted.facts),
    }
    return StepKey(json.loads(json.dumps({**run, **graph}, allow_nan=False)))  # as it is read: tuples become lists


def _describe_loaded() -> dict[str, Any]:
    """Code of a user's that is loaded, and the environment's variables that it names: it may decide by them."""
    sources = find_loaded_sources()
    texts = {name for content in sources.values() for name in _QUOTED.findall(content.decode(errors="replace"))}
    beginnings = tuple(text for text in texts if text.endswith("_") and text.strip("_"))  # f"MY_{name}", "MY_" + name
    named = [name for name in sorted(os.environ) if name in texts or name.startswith(beginnings)]
    return {
        "loaded": {name: hashlib.sha256(content).hexdigest()[:16] for name, content in sources.items()},
        "variables": {name: os.environ[name] for name in named if not _OF_A_LAUNCHER.fullmatch(name)},
    }

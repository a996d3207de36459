"""Whether an artifact was made for this run: every field of the configuration, unless it is listed here with a reason.

The whole configuration is compared, because everything may shape the step; what cannot is the exception. Loads without
torch, so that the answer comes at once.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from monograph.axes import Group
from monograph.config.configurable import BaseConfig, find_owner, walk_configs
from monograph.config.json_form import to_json
from monograph.config.leaves import replace_leaf
from monograph.config.sources import is_own
from monograph.parallel.mesh import Mesh

MAY_DIFFER: Mapping[str, str] = {
    "machine": "what it became is compared as machine.planned_for, where a pass planned with it",
    "job.*": "where a run writes, and what it is called",
    "training.steps": "how long a run lasts",
    "training.max_norm": "clipping happens after the step",
    "training.global_batch_size": "how many times the step runs before an update",
    "training.gc_interval": "Python's own memory, between steps",
    "parallelism.timeout_seconds": "how long ranks wait for each other",
    "compile.cache": "whether a captured step is kept for later runs",
    "compile.artifact": "where this artifact is",
    "compile.artifact_cache": "where nodes keep copies of this artifact",
    "compile.artifact_on_mismatch": "what to do with the answer of this comparison",
    "compile.artifact_key_file": "who vouches for the artifact, which is checked before it is compared",
    "compile.artifact_trust_shared_folder": "whose code may run, which is checked before it is loaded",
    "compile.tune_kernels": "how fast kernels are, and no bit of their results",
    "compile.cuda_graph": "recorded by every rank after the artifact was loaded",
    "optimizer.*": "the update happens after the step; whether it is a single pass is compared on its own",
    "lr_scheduler.*": "the learning rate is the optimizer's",
    "dataloader.*": "which data is read; the form of a batch is compared as the step's inputs",
    "tokenizer.*": "how text becomes numbers; the size of the vocabulary is the model's",
    "checkpoint.*": "saving and loading happen between steps",
    "metrics.*": "measuring happens between steps",
    "profiler.*": "watching a step does not change it",
    "validator.*": "how often and how long; the artifact has the step of evaluation too",
    "fault_tolerance.*": "sums over replicas happen after the step",
    "debug.seed": "initial weights and the order of data, both inputs of the step",
    "debug.device": "what it became on this machine is compared as machine.device",
    "debug.log_level": "how much is said",
}
"""Pattern of fields that may differ -> why they cannot change the step."""

ABSENT = "(nothing)"
IS_SINGLE_PASS = "is_single_pass"
"""Beside the optimizer's fields: whether it is a single pass, which may read gradients as they were computed."""


def reason_to_differ(path: str) -> str:
    """Why a field may differ; empty when it may not."""
    return next((reason for pattern, reason in MAY_DIFFER.items() if fnmatchcase(path, pattern)), "")


def resolve_config(config: BaseConfig, mesh: Mesh) -> dict[str, Any]:
    """The configuration as it is compared: with the shard degree that -1 stands for on this mesh, and whether the
    optimizer is a single pass, which passes know."""
    resolved = to_json(replace_leaf(config, "parallelism.data_parallel_shard_degree", mesh.dp_shard))
    plan_optimizer: Any = getattr(config, "plan_optimizer", None)  # of the trainer's config, which is not known here
    if plan_optimizer is not None:
        resolved["optimizer"][IS_SINGLE_PASS] = plan_optimizer().is_single_pass
    return resolved


def find_optimizer_misfit(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Whether a step leaves gradients and casts of weights for another kind of update than this run's."""
    kinds = [each.get("optimizer", {}).get(IS_SINGLE_PASS) for each in (theirs, ours)]
    if None in kinds or kinds[0] == kinds[1]:
        return []
    one, other = ("single_pass" if each else "another" for each in kinds)
    return [f"optimizer.implementation: artifact {one}, this run {other}"]


def find_own_code(config: BaseConfig) -> Sequence[Any]:
    """What a user wrote that decides the step, whose source is compared too: the passes in passes.extra, and of the
    model the Configs with what they build, and functions."""
    passes, model = (getattr(config, name, None) for name in ("passes", "model"))  # the trainer's, not known here
    found: dict[Any, None] = dict.fromkeys(passes.extra if passes is not None else ())
    for _, section in walk_configs(model) if model is not None else ():
        values = [getattr(section, each.name) for each in dataclasses.fields(section)]
        owner: Any = type(section).owner
        if isinstance(owner, str) and not owner.startswith("monograph."):  # ours are hashed with the package
            owner = find_owner(type(section))
        named = [type(section), owner, *values]
        found |= dict.fromkeys(each for each in named if callable(each) and is_own(each))
    return list(found)


def describe_mesh(mesh: Mesh) -> dict[str, int]:
    """The degree of every axis. How sequences are shared is in the configuration."""
    degrees = {name: value for name, value in dataclasses.asdict(mesh).items() if isinstance(value, int)}
    return {"world": mesh.world_size, **degrees}


def describe_groups(mesh: Mesh) -> dict[str, int]:
    """Logical group -> how many ranks it has."""
    return {group.value: mesh.group_size(group) for group in Group}


def flatten(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted path -> value of everything in a JSON object; lists are values unless they hold objects."""
    if isinstance(data, dict) and data:
        for name, item in data.items():
            yield from flatten(item, f"{path}.{name}" if path else name)
    elif isinstance(data, list) and data and all(isinstance(item, dict) for item in data):
        for index, item in enumerate(data):
            yield from flatten(item, f"{path}.{index}")
    else:
        yield path, data


def find_differences(theirs: Any, ours: Any, prefix: str = "") -> list[str]:
    """`path: artifact x, this run y` for every place at which two JSON objects differ and may not."""
    left, right = (dict(flatten(side, prefix)) for side in (theirs, ours))
    found = []
    for path in dict.fromkeys([*left, *right]):
        one, other = left.get(path, ABSENT), right.get(path, ABSENT)
        if is_other(one, other) and not reason_to_differ(path):
            found.append(f"{path}: artifact {show(one)}, this run {show(other)}")
    return found


def is_other(one: Any, other: Any) -> bool:
    """Whether two values are not the same; 1, 1.0 and true are three values."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(is_other, one, other))
    return type(one) is not type(other) or one != other


def show(value: Any) -> str:
    """A value in a message: short, and empty texts visible."""
    text = str(value) if value != "" else "''"
    return text if len(text) <= 80 else f"{text[:77]}..."

"""Every float of every config: an extreme value is refused by the field's name, or a run trains with it."""

import math
from pathlib import Path

import pytest

from monograph.config.annotations import find_annotations, find_members, is_valid
from monograph.config.configurable import check_config
from monograph.config.leaves import find_leaves, find_sections, replace_leaf
from monograph.errors import ConfigError, MonographError
from monograph.run import train
from monograph.train.config import TrainerConfig
from tests.kit.runs import read_records, read_step, tiny_run
from tests.test_house import find_config_classes

ROPE = {"model.rope.factor": 4.0, "model.rope.original_max_seq_len": 16}
RUNS = {
    "deepseek_v3": {**ROPE, "model.rope.scaling": "yarn"},
    "llama3": {**ROPE, "model.rope.scaling": "llama3"},
    "gpt_oss": {},
    "llama4": {},
    "gemma2": {},
    "gemma3": {},
}
OWN = (
    ".rope.",
    ".experts.alpha",
    ".experts.limit",
    ".attn_scale",
    ".logit_cap",
    ".score_cap",
    ".score_dim",
    ".window_theta",
)
"""Of families that share the rest with deepseek_v3."""
ELSEWHERE = {
    *("HfExportArguments.max_file_gb", "CompareArguments.tolerance", "BisectArguments.tolerance"),
    *("GenerateArguments.temperature", "GenerateArguments.top_p", "GenerateArguments.repetition_penalty"),
    "MixturePartConfig.weight",
}
"""Floats that are no field of these runs; commands and a mixture check them with their other arguments."""
EXTREMES = (0.0, -1.0, 5e-324, 1e-300, 1e-40, 1e-12, 1.0 - 2**-53, 1.0, 1e12, 1e38, 1e300, 1.7e308)
NOT_FINITE = (math.inf, -math.inf, math.nan)


def holds_floats(annotation) -> bool:
    return float in find_members(annotation)


def make_run(model: str, folder: Path) -> TrainerConfig:
    return tiny_run(folder, {**RUNS[model], "checkpoint.save_last": True}, model=model)


def find_floats(model: str) -> list[str]:
    return [leaf.path for leaf in find_leaves(make_run(model, Path("unused"))) if holds_floats(leaf.annotation)]


CASES = [
    (model, path)
    for model in RUNS
    for path in find_floats(model)
    if model == "deepseek_v3" or any(part in path for part in OWN)
]


def check_alone(config: TrainerConfig, path: str) -> None:
    """A pass's options are checked by their section: the run as a whole refuses any of them in eager mode."""
    section = path.rpartition(".")[0]
    check_config(find_sections(config)[section] if section.startswith("passes.") else config)


def find_accepted(model: str, path: str) -> list[float]:
    """The extreme values that are not refused; a refusal must name the field."""
    accepted, field, run = [], path.rpartition(".")[2], make_run(model, Path("unused"))
    for value in EXTREMES:
        try:
            check_alone(replace_leaf(run, path, value), path)
        except ConfigError as error:
            assert field in str(error), f"{path} = {value} is refused without its name: {error}"
        else:
            accepted.append(value)
    return accepted


def train_with(model: str, path: str, value: float, folder: Path) -> None:
    """Train three steps; every loss and every weight must be finite."""
    train(replace_leaf(make_run(model, folder), path, value))
    assert all(math.isfinite(record["loss"]) for record in read_records(folder)), f"{path} = {value}"
    weights = {name: tensor for name, tensor in read_step(folder, 3).items() if tensor.is_floating_point()}
    assert weights and all(tensor.isfinite().all() for tensor in weights.values()), f"{path} = {value}"


def test_every_float_of_the_package_is_one_of_these():
    fields = {
        f"{config.__name__}.{name}": {f"{base.__name__}.{name}" for base in config.__mro__}
        for config in find_config_classes()
        for name, annotation in find_annotations(config).items()
        if holds_floats(annotation)
    }
    covered = set(ELSEWHERE)
    for model in RUNS:
        sections = find_sections(make_run(model, Path("unused")))
        for path in find_floats(model):
            section, name = path.rsplit(".", 1)
            covered |= {f"{base.__name__}.{name}" for base in type(sections[section]).__mro__}
    unknown = {field for field, inherited in fields.items() if not inherited & covered}
    assert unknown == set() and len(fields) > 25


@pytest.mark.parametrize("value", NOT_FINITE)
def test_no_float_field_takes_a_number_that_is_not_finite(value):
    for config in find_config_classes():
        for name, annotation in find_annotations(config).items():
            if holds_floats(annotation):
                assert not is_valid(value, annotation), f"{config.__name__}.{name}"


@pytest.mark.parametrize(("model", "path"), CASES)
def test_an_extreme_number_is_refused_by_name_or_accepted(model, path):
    accepted = find_accepted(model, path)
    assert -1.0 not in accepted and len(accepted) < len(EXTREMES)


WORST = (
    ("llama3", "optimizer.eps", 2.0**-126),
    ("llama3", "optimizer.lr", 10.0),
    ("deepseek_v3", "model.attention.latent_norm_eps", 2.0**-126),
    ("deepseek_v3", "model.rope.beta_fast", 1e6),
)


@pytest.mark.parametrize(("model", "path", "value"), WORST)
def test_a_run_trains_with_a_number_at_the_edge_of_its_range(model, path, value, tmp_path):
    train_with(model, path, value, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("model", "path"), CASES)
def test_a_run_trains_with_every_extreme_number_that_is_accepted(model, path, tmp_path):
    for index, value in enumerate(find_accepted(model, path)):
        if path.startswith("passes."):
            run_pass_with(path, value, tmp_path / str(index))
        else:
            train_with(model, path, value, tmp_path / str(index))


def run_pass_with(path: str, value: float, folder: Path) -> None:
    """In graph mode; a budget that nothing fits in is refused by name when the step is captured."""
    changes = {"compile.mode": "graph", path: value}
    if path == "activation_checkpoint.budget_gib" and value:
        changes["activation_checkpoint.mode"] = "budget"
    try:
        train(tiny_run(folder, changes))
    except MonographError as error:
        assert path.rpartition(".")[2] in str(error)

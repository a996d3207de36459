"""Files and flags from before names were changed: loaded where no name matters, else refused with the new name."""

import json
import re
from pathlib import Path

import pytest

from monograph.cli import main
from monograph.config.configurable import BaseConfig
from monograph.config.json_form import parse_json, to_json
from monograph.config.leaves import find_leaves
from monograph.config.references import find_loaded
from monograph.errors import CheckpointError, ConfigError
from monograph.execute.artifact.folder import read_manifest
from monograph.graph.allowed_ops import find_target
from monograph.graph.encode import GraphFileError
from monograph.kernels.catalog import CUSTOM_OPS
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from monograph.renamed import RENAMED, RENAMED_CLASSES, RENAMED_OPS, find_new_name, find_replacement
from monograph.train.checkpoint.arguments import HfExportArguments
from monograph.train.checkpoint.hf_command import export_command
from tests.execute.test_artifact_command import RECIPE, write
from tests.train.checkpoint.disks import make_manager
from tests.train.checkpoint.test_hf_command import write_run

CONFIG = load_recipe(RECIPE)
FIELDS = {leaf.path for leaf in find_leaves(CONFIG)}
OPS = {each.name for each in CUSTOM_OPS.values()}
BEFORE = Path(__file__).parent / "goldens" / "before_renames" / "config.json"
OLD = {new: old for old, new in RENAMED.items()}


def write_old_names(data):
    """A file's content in the names of before."""
    if isinstance(data, list):
        return [write_old_names(item) for item in data]
    if not isinstance(data, dict):
        return data
    return {OLD.get(key, key): write_old_names(value) for key, value in data.items()}


def test_every_new_name_exists_and_no_old_name_does():
    parts = {part for path in FIELDS for part in path.split(".")}
    for renamed, known in ((RENAMED, {*parts, *ORDER}), (RENAMED_OPS, OPS)):
        assert [name for name in renamed.values() if name not in known] == []
        assert [name for name in renamed if name in known] == []
    for old, new in RENAMED_CLASSES.items():
        assert issubclass(find_loaded(f"monograph.{new}"), BaseConfig)
        with pytest.raises(ConfigError, match="defines no"):
            find_loaded(f"monograph.{old}")
    assert [path for path in FIELDS if find_replacement(path)] == []


def drop(data, path):
    """The content without a field."""
    name, _, rest = path.partition(".")
    if rest:
        return data | {name: drop(data[name], rest)}
    return {key: value for key, value in data.items() if key != name}


def follow(data, error):
    """The content of a file after doing what its error says, without the field where another one replaces it."""
    if error.what.startswith("there is no field "):
        return drop(data, error.what.split()[-1])
    old, new = error.what.split("'")[1], error.do.split()[3]
    return json.loads(json.dumps(data).replace(f'"{old}"', f'"{new}"'))


def test_a_configuration_from_before_the_renames_is_refused_field_by_field_with_what_to_do():
    """The file was written before names changed; doing what one error says leads to the next, and then it loads."""
    data = json.loads(BEFORE.read_text(encoding="utf-8"))
    errors = []
    while len(errors) < 30:
        try:
            found = parse_json(json.dumps(data))
            break
        except ConfigError as error:
            errors.append(error)
            data = follow(data, error)
    assert errors[0].what == "there is no field model.loss.slice_tokens"
    assert errors[0].do == "it is called 'chunk_tokens' now"
    assert errors[1].what == "there is no field model.attention.sdpa"
    assert errors[1].do == "write kernel: auto, flash, cudnn or reference"
    assert errors[2].what == "there is no field compile.partition"
    assert errors[2].do == "write activation_checkpoint.mode min_cut"
    assert [error.what for error in errors if not error.do] == []
    advice = " ".join(error.do for error in errors if error.what.startswith("there is no field"))
    assert {*re.findall(r"\w+\.\w+", advice)} <= FIELDS
    assert found.training == load_recipe("deepseek_v3_debugmodel").training


@pytest.mark.parametrize("path", sorted(path for path in FIELDS if {*path.split(".")} & {*OLD}))
def test_a_flag_with_an_old_name_is_refused_with_its_new_one(path, capsys):
    old = ".".join(OLD.get(part, part) for part in path.split("."))
    assert main(["config", RECIPE, f"--{old}", "1"]) == 2
    assert f"it is called --{path} now" in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), RENAMED_OPS.items())
def test_a_graph_file_that_calls_an_op_by_an_old_name_is_refused_with_its_new_one(old, new):
    with pytest.raises(GraphFileError, match=rf"it is called monograph\.{new}\.default now, and .* captured again"):
        find_target(f"monograph.{old}.default")


def test_names_that_were_never_changed_have_no_new_one():
    assert find_new_name("training.steps", FIELDS) == ""
    assert find_new_name("merge_matmuls", ORDER) == ""


def test_an_artifact_in_old_names_is_refused_by_field_and_says_to_precompile_again(tmp_path, capsys):
    config = read_manifest(Path(write(tmp_path / "new"))).sections["config"]
    folder = write(tmp_path / "old", config=write_old_names(config))
    assert main(["artifact", "check", folder, RECIPE]) == 2
    assert "model.loss.slice_tokens: artifact 2048, this run (nothing)" in capsys.readouterr().out
    words = ["train", RECIPE, "--ranks", "2", "--compile.artifact", folder, "--job.dump_folder", str(tmp_path / "run")]
    assert main(words) == 2
    assert "precompile again" in capsys.readouterr().err


def test_a_checkpoint_in_old_names_loads_and_its_export_is_refused_with_the_new_name(tmp_path):
    model = write_run(tmp_path / "run", to_values=lambda model: {"model": write_old_names(to_json(model))})
    live = {f"model/{name}": tensor.detach() for name, tensor in model.build().state_dict().items()}
    with make_manager(tmp_path / "run", load="latest", load_model_only=True) as manager:
        manager.load("latest", live)
    assert all((tensor == 2).all() for tensor in live.values())
    with pytest.raises(CheckpointError, match=r"loss\.slice_tokens") as error:
        export_command(HfExportArguments(checkpoint=str(tmp_path / "run"), out=str(tmp_path / "back")))
    assert error.value.do.startswith("it is called 'chunk_tokens' now: give the model's configuration")

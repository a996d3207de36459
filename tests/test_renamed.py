"""Files and flags from before names were changed: loaded where no name matters, else refused with the new name."""

import json
from pathlib import Path

import pytest

from monograph.cli import main
from monograph.config.json_form import dump_json, parse_json, to_json
from monograph.config.leaves import find_leaves, find_sections
from monograph.errors import CheckpointError, ConfigError
from monograph.execute.artifact.folder import read_manifest
from monograph.graph.allowed_ops import find_target
from monograph.graph.encode import GraphFileError
from monograph.kernels.catalog import CUSTOM_OPS
from monograph.passes import config as passes_config
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from monograph.renamed import RENAMED, RENAMED_OPS, find_new_name
from monograph.train.checkpoint.arguments import HfExportArguments
from monograph.train.checkpoint.hf_command import export_command
from tests.execute.test_artifact_command import RECIPE, write
from tests.train.checkpoint.disks import make_manager
from tests.train.checkpoint.test_hf_command import write_run

CONFIG = load_recipe(RECIPE)
FIELDS = {leaf.path for leaf in find_leaves(CONFIG)}
SECTIONS = {*find_sections(CONFIG)}
OPS = {each.name for each in CUSTOM_OPS.values()}
OLD = {new: old for old, new in RENAMED.items()}


def write_old_names(data):
    """A file's content in the names of before: keys, and the classes they were made from."""
    if isinstance(data, list):
        return [write_old_names(item) for item in data]
    if not isinstance(data, dict):
        return data
    found = {OLD.get(key, key): write_old_names(value) for key, value in data.items()}
    module, colon, kind = str(data.get("$class", "")).partition(":")
    return found | ({"$class": f"{module}{colon}{OLD.get(kind, kind)}"} if colon else {})


def test_every_new_name_exists_and_no_old_name_does():
    parts = {part for path in FIELDS for part in path.split(".")}
    for renamed, known in ((RENAMED, {*parts, *ORDER, *vars(passes_config)}), (RENAMED_OPS, OPS)):
        assert [name for name in renamed.values() if name not in known] == []
        assert [name for name in renamed if name in known] == []


def test_a_configuration_in_old_names_is_refused_with_the_first_new_one():
    old = write_old_names(json.loads(dump_json(CONFIG)))
    with pytest.raises(ConfigError) as error:
        parse_json(json.dumps(old))
    assert error.value.what == "there is no field model.loss.slice_tokens"
    assert error.value.do == "it is called 'chunk_tokens' now"


@pytest.mark.parametrize("path", sorted(path for path in SECTIONS if path.rpartition(".")[2] in OLD))
def test_each_section_with_an_old_name_is_refused_with_its_new_one(path):
    data = json.loads(dump_json(CONFIG))
    *outer, name = path.split(".")
    holder = data
    for part in outer:
        holder = holder[part]
    holder[OLD[name]] = holder.pop(name)
    with pytest.raises(ConfigError, match=OLD[name]) as error:
        parse_json(json.dumps(data))
    assert error.value.do == f"it is called '{name}' now"


def test_a_class_with_an_old_name_is_refused_with_its_new_one():
    data = json.loads(dump_json(CONFIG))
    section = next(part for part in data["passes"].values() if str(part).count("MergeMatmulsConfig"))
    section["$class"] = section["$class"].replace("MergeMatmulsConfig", OLD["MergeMatmulsConfig"])
    with pytest.raises(ConfigError) as error:
        parse_json(json.dumps(data))
    assert error.value.do == "it is called monograph.passes.config:MergeMatmulsConfig now"


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
    assert "passes.join_products.enabled: artifact False, this run (nothing)" in capsys.readouterr().out
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

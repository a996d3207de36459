"""What the command line says about artifacts: at once, without torch, with the field and both values."""

import subprocess
import sys
import time

import pytest

from monograph.cli import main
from monograph.execute.artifact.compare import describe_groups, describe_mesh, resolve_config
from monograph.execute.artifact.folder import write_artifact
from monograph.execute.artifact.machine import describe_here
from monograph.execute.artifact.manifest import MANIFEST
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from tests.execute.artifacts import make_sections

RECIPE = "llama3_debugmodel"
SECONDS = 2.0
"""Within which wrong input is answered."""


def write(folder, mesh=None, **changes):
    """An artifact of a recipe without its graphs: as much as is looked at before torch is loaded."""
    mesh = mesh or Mesh(dp_shard=2)
    config = load_recipe(RECIPE)
    config = config.replace(compile=config.compile.replace(mode="graph"))
    made_for = {"config": resolve_config(config, mesh), "mesh": describe_mesh(mesh), "groups": describe_groups(mesh)}
    inputs = {"inputs": {"step": {"0000 state/w": "float32[2]"}}}
    sections = make_sections(**{**describe_here(), **made_for, **inputs, **changes})
    write_artifact(folder, sections, {"step.json": b"{}"})
    return str(folder)


def said(capsys):
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_check_says_that_an_artifact_fits_or_names_every_field_that_does_not(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    assert main(["artifact", "check", folder, RECIPE, "--ranks", "2"]) == 0
    assert "fits a run on 2 ranks" in said(capsys)
    changes = [
        "--ranks",
        "2",
        "--training.seq_len",
        "512",
        "--training.compute_dtype",
        "bfloat16",
        "--training.steps",
        "7",
    ]
    assert main(["artifact", "check", folder, RECIPE, *changes]) == 2
    lines = said(capsys).splitlines()
    before = load_recipe(RECIPE).training
    assert lines[:2] == [
        f"training.seq_len: artifact {before.seq_len}, this run 512",
        f"training.compute_dtype: artifact {before.compute_dtype}, this run bfloat16",
    ]
    assert lines[2].endswith("2 differences")


@pytest.mark.parametrize("words", [["artifact", "check"], ["train"]])
def test_check_and_train_take_the_same_number_of_ranks_and_name_the_artifacts(words, tmp_path, capsys):
    """Without --ranks there is one rank, whatever the artifact was made for."""
    folder = write(tmp_path / "artifact")
    given = [folder, RECIPE] if words[0] == "artifact" else [RECIPE, "--compile.artifact", folder]
    assert main([*words, *given]) == 2
    assert "ranks: artifact 2, this run 1 (--ranks 2 starts as many)" in said(capsys).replace("\n", " ")


def test_another_number_of_ranks_is_named_as_a_degree_and_as_such(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    assert main(["artifact", "check", folder, RECIPE, "--ranks", "4"]) == 2
    told = said(capsys)
    assert "parallelism.data_parallel_shard_degree: artifact 2, this run 4" in told
    assert "ranks: artifact 2, this run 4" in told
    assert "groups.fsdp_gather: artifact 2, this run 4" in told


@pytest.mark.parametrize(
    ("section", "field"), [("versions", "torch"), ("versions", "source"), ("environment", "TRITON_X")]
)
def test_other_versions_and_settings_are_named(tmp_path, capsys, section, field):
    folder = write(tmp_path / "artifact", **{section: {**describe_here()[section], field: "another"}})
    assert main(["artifact", "check", folder, RECIPE]) == 2
    assert f"{section}.{field}: artifact another, this run" in said(capsys)


def test_show_prints_the_manifest_for_a_person(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    assert main(["artifact", "show", folder, "--all", "true"]) == 0
    told = said(capsys)
    for word in ("unsigned", "fsdp_gather", "training.seq_len", "step.json", "torch", "state/w"):
        assert word in told


def test_train_refuses_an_artifact_of_another_run_within_two_seconds_and_without_torch(tmp_path):
    folder = write(tmp_path / "artifact")
    code = "import sys\nfrom monograph.cli import main\ncode = main(sys.argv[1:])\n"
    code += "sys.exit('torch was imported' if 'torch' in sys.modules else code)\n"
    words = ["train", RECIPE, "--ranks", "2", "--compile.artifact", folder, "--training.seq_len", "512"]
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert f"training.seq_len: artifact {load_recipe(RECIPE).training.seq_len}, this run 512" in done.stderr
    assert time.perf_counter() - start < 5 * SECONDS, "on a machine that is busy with other tests"


def test_a_damaged_artifact_is_refused_whatever_is_to_happen_on_a_mismatch(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    (tmp_path / "artifact" / MANIFEST).write_bytes(b"{}")
    words = ["train", RECIPE, "--compile.artifact", folder, "--compile.artifact_on_mismatch", "compile"]
    assert main(words) == 2
    assert "manifest is damaged" in said(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["artifact", "check"], "artifact check needs FOLDER"),
        (["artifact", "check", "--ranks", "2"], "artifact check needs FOLDER"),
        (["artifact", "check", "nowhere", RECIPE], "no artifact in nowhere"),
        (["artifact", "show", "nowhere"], "no artifact in nowhere"),
        (["precompile", RECIPE], "--out is missing"),
        (["precompile", RECIPE, "--out", "."], "exists already"),
        (["precompile", RECIPE, "--out", "x", "--compile.mode", "eager"], "compile.mode is eager"),
        (["precompile", RECIPE, "--out", "x", "--compile.artifact", "y"], "not from another artifact"),
        (["train", RECIPE, "--compile.artifact", "x", "--compile.mode", "layer"], "which only graph mode runs"),
        (["train", RECIPE, "--compile.artifact", "nowhere"], "no artifact in nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_words_that_cannot_work_are_refused(words, expected, capsys):
    assert main(words) == 2
    assert expected in said(capsys)

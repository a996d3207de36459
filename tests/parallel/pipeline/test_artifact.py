"""One artifact for all stages of a pipeline: its ranks load their own, capture nothing, and have the same bits."""

import os
import shutil

import pytest

from monograph.commands.precompile import precompile
from monograph.config.leaves import replace_leaf
from monograph.errors import MonographError
from monograph.execute.artifact.fields import SECTIONS, by_graph
from monograph.execute.artifact.folder import check_files, read_manifest
from monograph.manifest.fields import ManifestError
from monograph.parallel.groups import joined_groups
from monograph.run import build_step
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU
from tests.kit.ranks import pool
from tests.parallel.pipeline.pipeline_work import make_updates, make_updates_from_artifact
from tests.parallel.pipeline.test_training import SHALLOW, check_bits, configure, one_device


def make_artifact(folder, model, **degrees):
    """An artifact of six micro-batches, for a run of four."""
    config, made_for = (configure(model, count, SHALLOW, pp=2, **degrees) for count in (4, 6))
    ranks = 2 * degrees.get("shard", 1)
    files = precompile(made_for, plan_run_mesh(made_for, ranks), folder / "artifact")
    return config, replace_leaf(config, "compile.artifact", str(folder / "artifact")), ranks, files


def open_on_rank(config):
    """How building the step of one rank ends."""
    with joined_groups(plan_run_mesh(config, int(os.environ["WORLD_SIZE"])), CPU) as groups:
        try:
            step = build_step(config, groups)
        except MonographError as error:
            return error.what, error.why
        has_artifact = step.artifact is not None
        step.close()
        return "built", "from the artifact" if has_artifact else "by capturing"


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_ranks_train_from_one_artifact_of_all_stages_to_the_bits_of_one_device(model, tmp_path):
    _, loaded, ranks, files = make_artifact(tmp_path, model, schedule="zbv")
    graphs = {name.removesuffix(".json") for name in files if name.endswith(".json")}
    assert graphs == {f"{kind}_{stage}" for kind in ("step", "evaluation") for stage in range(4)}
    found = pool.run(ranks, make_updates_from_artifact, loaded, 3)
    check_bits(one_device(model, 4, 3, SHALLOW), found)
    damage_and_refuse(loaded, tmp_path)


def damage_and_refuse(loaded, folder):
    """A damaged stage, another division into stages, and a stage that is not there stop every rank in words."""
    other = replace_leaf(loaded, "parallelism.pipeline_schedule", "interleaved_1f1b")
    for what, why in pool.run(2, open_on_rank, other):
        assert "was made for another run" in what
        assert why == "parallelism.pipeline_schedule: artifact zbv, this run interleaved_1f1b"
    fallback = replace_leaf(other, "compile.artifact_on_mismatch", "compile")
    assert pool.run(2, open_on_rank, fallback) == [("built", "by capturing")] * 2
    path = folder / "artifact" / "step_3.json"
    path.write_bytes(path.read_bytes().replace(b"mm", b"nn", 1))
    for what, _ in pool.run(2, open_on_rank, loaded):
        assert "step_3.json of the artifact is damaged" in what


@pytest.mark.long
def test_an_artifact_of_sharded_stages_is_the_same_whichever_rank_is_fake(tmp_path):
    config, loaded, ranks, files = make_artifact(tmp_path, "deepseek_v3", shard=2)
    again = precompile(config, plan_run_mesh(config, ranks), tmp_path / "again", rank=1)
    assert again == files
    captured, found = pool.run(ranks, make_updates, config, 3), pool.run(ranks, make_updates_from_artifact, loaded, 3)
    check_bits(captured, found)
    check_files(tmp_path / "artifact", read_manifest(tmp_path / "artifact"))
    shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["step_0", "step_2"], "digests.step_1 is missing"),
        (["step_0", "step"], "has the field 'step'"),
        (["step_0", "evaluation_1"], "has the field 'evaluation_1'"),
        (["step_x"], "digests.step_0 is missing"),
        (["evaluation_0"], "digests.step is missing"),
    ],
)
def test_a_manifest_names_every_stage_once(names, words):
    fine = {name: "0" * 32 for name in ("step_0", "step_1", "evaluation_0", "evaluation_1")}
    SECTIONS["digests"](fine, "digests")
    with pytest.raises(ManifestError, match=words):
        by_graph(lambda *_: None)(dict.fromkeys(names), "digests")

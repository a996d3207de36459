"""One artifact for every rank: the same numbers as without it, and no rank runs anything that another does not."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from examples.own_pass import ShareEqualValues
from monograph.commands.precompile import CannotPrecompile, RankCapture, capture_as, check_rank_free, describe_device
from monograph.config.configurable import BaseConfig
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.execute.artifact.compare import (
    MAY_DIFFER,
    find_differences,
    find_optimizer_misfit,
    reason_to_differ,
    resolve_config,
)
from monograph.execute.artifact.describe import describe_machine
from monograph.execute.artifact.fields import SECTIONS
from monograph.execute.artifact.folder import read_manifest
from monograph.execute.artifact.make import make_files, make_sections
from monograph.execute.artifact.open import find_machine_misfits
from monograph.machine.table import MACHINES
from monograph.manifest.fields import ManifestError
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from tests.execute.artifacts import (
    compare_with_eager,
    make_artifact,
    make_config,
    nothing_made,
    open_folder,
    open_on_ranks,
)
from tests.execute.updates import CPU
from tests.kit.ranks import pool

MESH = Mesh(dp_shard=2, ep=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def artifact(folder):
    make_artifact(folder, folder / "artifact")
    return folder / "artifact"


def flip(value):
    """Another value of the same kind, as far as there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple):
        return (*value, "another")
    return "something" if value is None else None


def test_two_ranks_train_from_one_artifact_to_the_bits_of_eager_without_tracing_or_compiling(folder, artifact):
    for different, same_evaluation in pool.run(2, compare_with_eager, str(folder), str(artifact)):
        assert different == []
        assert same_evaluation


NAMES = {"machine": "b200", "optimizer.state_dtype": "bfloat16"}
"""Other values of fields that take names."""


@pytest.mark.long
def test_its_bytes_depend_neither_on_the_rank_nor_on_fields_that_may_differ(folder, artifact):
    config = make_config(folder)
    changed = config
    for leaf in find_leaves(config):
        if reason_to_differ(leaf.path) and not leaf.path.startswith(("compile", "debug.device")):
            value = NAMES.get(leaf.path) or flip(leaf.value)
            changed = replace_leaf(changed, leaf.path, value)
    capture = capture_as(1, changed, MESH, CPU, is_compiled=True)
    files = make_files(capture.graphs, capture.facts, folder)
    manifest = read_manifest(artifact)
    assert {name: (artifact / name).read_bytes() for name in manifest.files} == files
    sections = make_sections(config, MESH, capture.table, CPU, capture.graphs, capture.facts.machine)
    assert json.loads(json.dumps(sections)) == manifest.sections


def test_ranks_that_capture_different_steps_get_no_artifact():
    one, other = (RankCapture({}, {"step": f"forward:\n  0: x = add({number})\n"}, None, None) for number in (3, 4))
    check_rank_free(one, 0, one, 7)
    with pytest.raises(CannotPrecompile, match="ranks 0 and 7") as refused:
        check_rank_free(one, 0, other, 7)
    assert "add(3)" in refused.value.why and "add(4)" in refused.value.why


def test_one_rank_with_another_artifact_stops_all_of_them_by_name(folder, artifact):
    answers = pool.run(2, open_on_ranks, str(folder), [str(artifact), str(folder / "nowhere")])
    for what, why in answers:
        assert what == "the artifact of rank 1 is not that of rank 0"
        assert "there is no artifact in" in why


@pytest.mark.long
def test_an_artifact_for_another_length_is_refused_by_name_or_left_aside_as_asked(folder, artifact):
    changes = {"training.seq_len": 16}
    for what, why in pool.run(2, open_on_ranks, str(folder), [str(artifact)] * 2, changes):
        assert "was made for another run" in what
        assert why == "training.seq_len: artifact 32, this run 16"
    changes["compile.artifact_on_mismatch"] = "compile"
    answers = pool.run(2, open_on_ranks, str(folder), [str(artifact)] * 2, changes)
    assert answers == [("built", "by capturing")] * 2


@pytest.mark.parametrize("recipe", ["deepseek_v3_debugmodel", "llama3_debugmodel", "qwen3_debugmodel_moe"])
def test_every_field_is_compared_or_has_a_reason_not_to_be(recipe):
    config = load_recipe(recipe)
    theirs = resolve_config(config, Mesh())
    assert find_differences(theirs, resolve_config(config, Mesh())) == []
    for leaf in find_leaves(config):
        if leaf.path == "parallelism.data_parallel_shard_degree":
            ours = resolve_config(config, Mesh(dp_shard=2))  # -1 stands for a number: that one is compared
        else:
            other = (ShareEqualValues,) if leaf.path == "passes.extra" else flip(leaf.value)
            ours = resolve_config(replace_leaf(config, leaf.path, other), Mesh())
        found = find_differences(theirs, ours)
        if reason_to_differ(leaf.path):
            assert found == [], leaf.path
        else:
            one = len(found) == 1 or leaf.path == "passes.extra"  # with a pass come its options
            assert one and all(each.startswith(leaf.path) for each in found), (leaf.path, found)


def test_a_step_for_a_single_pass_optimizer_fits_no_other():
    """Its gradients are narrow: torch's loops would stop at them, and an optimizer of one's own would not."""
    config = load_recipe("llama3_debugmodel")
    config.compile.numerics = "fast"
    theirs = resolve_config(config, Mesh())
    config.optimizer.state_dtype = "bfloat16"
    assert find_optimizer_misfit(theirs, resolve_config(config, Mesh())) == [], "also a single pass"
    config.optimizer = config.optimizer.replace(state_dtype="auto", implementation="fused")
    (misfit,) = find_optimizer_misfit(theirs, resolve_config(config, Mesh()))
    assert misfit == "optimizer.implementation: artifact single_pass, this run another"


def test_a_graph_that_was_planned_for_a_machine_fits_no_other():
    groups = SimpleNamespace(device=CPU)
    h100, b200 = MACHINES["H100"], MACHINES["B200"]

    def misfits(planned_for, here):
        section = describe_machine(CPU, is_compiled=False, planned_for=planned_for)
        return find_machine_misfits(
            SimpleNamespace(sections={"machine": section}, has_compiled_parts=False), groups, here
        )

    assert misfits(None, h100) == misfits(None, b200) == misfits(h100, h100) == []
    assert misfits(h100, b200)[0] == "machine.planned_for.name: artifact H100, this run B200"
    (found,) = misfits(h100, replace(h100, link_gb_per_second=449.5))
    assert found == "machine.planned_for.link_gb_per_second: artifact 450, this run 449.5"


@pytest.mark.parametrize("name", MACHINES)
def test_every_machine_that_a_graph_is_planned_for_can_be_read_again(name):
    section = describe_machine(CPU, is_compiled=False, planned_for=MACHINES[name])
    SECTIONS["machine"](section, "machine")
    with pytest.raises(ManifestError, match=r"machine\.device is missing"):
        SECTIONS["machine"]({each: section[each] for each in section if each != "device"}, "machine")


@pytest.mark.long
def test_the_machine_is_written_down_only_if_a_pass_decided_by_it(folder):
    changes = {"compile.expert_overlap.strategy": "trace", "training.local_batch_size": 4, "machine": "b200"}
    config = make_config(folder)
    for path, value in changes.items():
        config = replace_leaf(config, path, value)
    for off, wanted in (((), "B200"), (("overlap_experts",), None)):
        changed = replace_leaf(config, "passes.off", off)
        capture = capture_as(0, changed, MESH, CPU, is_compiled=True)
        sections = make_sections(changed, MESH, capture.table, CPU, capture.graphs, capture.facts.machine)
        assert sections["machine"].get("planned_for.name") == wanted
        SECTIONS["machine"](sections["machine"], "machine")


def test_a_component_of_another_class_is_another_configuration():
    config = load_recipe("llama3_debugmodel")
    ours = resolve_config(config, Mesh())
    ours["model"]["$class"] = "elsewhere:Config"
    (found,) = find_differences(resolve_config(config, Mesh()), ours)
    assert found.startswith("model.$class: artifact monograph.models.llama3")


def test_every_reason_belongs_to_a_field_that_exists():
    paths = [leaf.path for leaf in find_leaves(load_recipe("deepseek_v3_debugmodel"))]
    for pattern, reason in MAY_DIFFER.items():
        assert any(reason_to_differ(path) == reason for path in paths), pattern
        assert len(reason.split()) >= 4, f"{pattern}: a reason is a sentence"


def test_a_graph_is_read_without_a_fake_tensor_in_sight(folder, artifact):
    facts = capture_as(0, make_config(folder), MESH, CPU, is_compiled=False).facts
    with nothing_made():
        loaded = open_folder(artifact)
        graphs = {name: loaded.graph(name, facts) for name in ("step", "evaluation")}
    assert {name: graph.digest() for name, graph in graphs.items()} == loaded.manifest.sections["digests"]
    assert graphs["step"].text() == (artifact / "step.txt").read_text()


def test_configs_are_told_apart_by_kind_as_well_as_by_value():
    assert find_differences({"a": 1}, {"a": 1.0}) == ["a: artifact 1, this run 1.0"]
    assert find_differences({"a": True}, {"a": 1}) == ["a: artifact True, this run 1"]
    assert find_differences({"a": [1, 2]}, {"a": [1]}) == ["a: artifact [1, 2], this run [1]"]
    assert find_differences({"a": 1}, {"b": ""}) == [
        "a: artifact 1, this run (nothing)",
        "b: artifact (nothing), this run ''",
    ]
    assert isinstance(load_recipe("llama3_debugmodel"), BaseConfig)


def test_the_command_says_which_device_the_program_is_for():
    assert describe_device(CPU) == "a CPU"

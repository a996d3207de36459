"""`--passes.on` and `--passes.off`: which passes run, why the others do not, and what is refused."""

import dataclasses

import pytest

from monograph.cli import main
from monograph.commands.request import read_request
from monograph.config.configurable import BaseConfig, check_config
from monograph.errors import ConfigError
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.options import PassOptions
from monograph.passes.order import ORDER
from monograph.passes.runner import build_passes, load_pass, run_passes
from tests.kit.pipelines import capture_small

GRAPH = ["llama3_debugmodel", "--compile.mode", "graph"]


def read(*words):
    return read_request([*GRAPH, *words], BaseConfig()).config


@pytest.mark.parametrize("words", [["a, b"], ["a,b"], ["a", "b"], ["a,", "b"], ["[a, b]"]])
def test_names_are_separated_by_spaces_or_commas(words):
    names = [word.replace("a", "recompute").replace("b", "fuse_kernels") for word in words]
    assert read("--passes.off", *names).passes.off == ("recompute", "fuse_kernels")


def test_a_name_that_is_no_pass_is_refused_with_the_nearest():
    for field in ("on", "off"):
        with pytest.raises(ConfigError, match=rf"(?s)passes.{field} has 'merge_matmul'.*did you mean merge_matmuls\?"):
            check_config(PassesConfig(**{field: ("merge_matmul",)}))


def test_a_name_in_both_lists_is_refused():
    with pytest.raises(ConfigError, match=r"passes.on and passes.off both have recompute"):
        read("--passes.on", "recompute", "--passes.off", "recompute")


def test_switching_on_what_is_on_by_default_changes_nothing():
    assert PassesConfig(on=("recompute",)).find_off("exact") == PassesConfig().find_off("exact")


def test_an_option_that_says_what_to_do_asks_for_the_pass_by_itself():
    asked = PassesConfig(offload_activations=OffloadActivationsConfig(budget_gib=1.0))
    assert "offload_activations" in PassesConfig().find_off("fast")
    assert "offload_activations" not in asked.find_off("exact")
    with pytest.raises(ConfigError, match=r"(?s)passes.off has offload_activations.*budget_gib asks for the pass"):
        check_config(asked.replace(off=("offload_activations",)))


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("offload_activations", "--passes.offload_activations.budget_gib 8"),
        ("mark_regions", "--passes.mark_regions.regions blocks outside"),
    ],
)
def test_a_pass_that_was_not_told_what_to_do_names_the_option(name, flag):
    with pytest.raises(ConfigError, match=flag):
        check_config(PassesConfig(on=(name,)))


def test_a_pass_that_cannot_run_beside_another_is_refused_when_asked_for_and_left_out_otherwise():
    both = PassesConfig(on=("cache_cast_weights", "compile_whole"))
    with pytest.raises(
        ConfigError,
        match=r"(?s)cache_cast_weights, which cannot run.*compile_whole runs",
    ):
        both.check_asked("exact")
    assert PassesConfig(on=("compile_whole",)).find_off("exact")["cache_cast_weights"] == "compile_whole runs"
    without = PassesConfig(off=("merge_matmuls",)).find_off("fast")
    assert without["fuse_swiglu_epilogue"] == "it needs merge_matmuls, which is off"


def test_every_pass_that_does_not_run_is_recorded_with_the_reason():
    graph, facts = capture_small("llama3", Mesh(), **{"model.n_layers": 1})
    records = {
        record.name: record for record in run_passes(graph, build_passes(PassesConfig(off=("recompute",))), facts)
    }
    assert list(records) == list(ORDER)
    assert (records["recompute"].status, records["recompute"].note) == ("off", "passes.off has recompute")
    assert records["merge_matmuls"].note == "compile.numerics is exact"
    assert records["offload_activations"].note == "passes.offload_activations.budget_gib is 0.0"
    assert records["compile_whole"].note == "by default; --passes.on compile_whole runs it"
    assert records["cache_cast_weights"].status == "skipped"
    assert "reshard_after_forward" in records["cache_cast_weights"].note


def test_options_follow_from_the_order():
    fields = {name for name, entry in ORDER.items() if entry.options is not PassOptions}
    others = {"on", "off", "extra", "extra_options"}
    assert {field.name for field in dataclasses.fields(PassesConfig)} == others | fields
    for name, entry in ORDER.items():
        assert load_pass(entry).Config is entry.options, name
        assert load_pass(entry).name() == name


def test_a_wrong_name_is_answered_on_the_command_line(capsys):
    assert main(["train", *GRAPH, "--passes.on", "merge_matmul"]) == 2
    assert "did you mean merge_matmuls?" in capsys.readouterr().err

"""plan: every choice is searched, is accepted by the configuration, and guesses are corrected by captures."""

from dataclasses import replace

import pytest

from monograph.config.configurable import check_config
from monograph.machine.table import MACHINES
from monograph.parallel.mesh import Mesh
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.plan.axes import check_choice, list_choices, list_pipelines
from monograph.plan.choice import PipelineChoice, RunChoice, configure
from monograph.plan.ranking import Guessed, Ranking
from monograph.plan.rough import RoughEstimate
from monograph.recipes.catalog import load_recipe
from monograph.train.layout import plan_run_mesh

H100 = MACHINES["H100"]


def with_training(config, **changes):
    return config.replace(training=config.training.replace(**changes))


def test_choices_divide_the_devices_and_keep_the_global_batch():
    config = load_recipe("deepseek_v3_16b")
    found = list(list_choices(config, 64, H100, {}))
    assert {each.mesh.world_size for each in found} == {64}
    for each in found:
        assert each.sequences * each.micro_batches * each.mesh.data_parts == config.training.global_batch_size
    assert {each.mesh.tp for each in found} == {1, 2, 4, 8} and max(each.mesh.ep for each in found) == 64
    assert {each.mesh.etp for each in found} >= {1, 2}
    fixed = list(list_choices(config, 64, H100, {"parallelism.tensor_parallel_degree": 2}))
    assert {each.mesh.tp for each in fixed} == {2}


def test_every_axis_policy_and_schedule_is_searched():
    config = with_training(load_recipe("deepseek_v3_16b"), seq_len=16384, global_batch_size=512)
    found = list(list_choices(config, 16, H100, {}))
    for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp"):
        assert len({getattr(each.mesh, axis) for each in found}) > 1, axis
    assert {each.mesh.cp_method for each in found if each.mesh.cp > 1} == {"all_gather", "ulysses"}
    assert {each.policy for each in found} == {"none", "selective", "full"}
    assert {each.reshard for each in found} == {True, False}
    assert {each.offload for each in found} == {False}, "copies to the host were measured to be slow"
    offloading = OffloadActivationsConfig(budget_gib=1.0)
    asked = config.replace(passes=config.passes.replace(offload_activations=offloading))
    assert {each.offload for each in list_choices(asked, 16, H100, {})} == {True}
    assert {each.overlap for each in found} == {False}, "chunks round differently, and the recipe is exact"
    fast = config.replace(compile=config.compile.replace(numerics="fast"))
    searched = list(list_choices(fast, 16, H100, {}))
    assert {each.overlap for each in searched} == {True, False} and {each.numerics for each in searched} == {"fast"}
    pipelines = list_pipelines(config, 4, 32, 29, {})
    assert {each.schedule for each in pipelines} == {"gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"}
    assert {each.virtual_stages for each in pipelines if each.schedule == "interleaved_1f1b"} == {2, 4}


@pytest.mark.parametrize(
    "change",
    [
        {},
        *(
            pytest.param(change, marks=pytest.mark.long)
            for change in (
                {"policy": "full"},
                {"offload": True},
                {"reshard": False},
                {"numerics": "fast", "policy": "min_cut", "overlap": True},
            )
        ),
        {"numerics": "float8", "policy": "min_cut"},
    ],
    ids=str,
)
def test_what_is_chosen_is_a_configuration_that_training_accepts(change):
    config = with_training(load_recipe("deepseek_v3_16b"), seq_len=16384, global_batch_size=512)
    mesh = Mesh(dp_shard=8, cp=2, ep=4, cp_method="ulysses")
    plain = RunChoice(mesh, 2, 32, "selective", True)._replace(**change)
    piped = plain._replace(mesh=replace(mesh, pp=4, dp_shard=2, cp_method="all_gather"), micro_batches=128)
    cases = [(plain, PipelineChoice())]
    if not plain.overlap:
        cases += [(piped, each) for each in list_pipelines(config, 4, 128, 29, {})]
    for choice, pipeline in cases:
        asked = configure(config, choice, pipeline, offload_gib=1.5)
        check_config(asked)
        found = plan_run_mesh(asked, choice.mesh.world_size)
        assert replace(found, cp_gather=choice.mesh.cp_gather) == choice.mesh
        assert not check_choice(config, choice, pipeline)


def test_captures_are_spread_over_meshes_before_one_is_tried_twice():
    meshes = [Mesh(dp_shard=8), Mesh(dp_shard=4, tp=2)]
    policies = ("none", "selective", "full")
    guesses = [
        Guessed(RunChoice(mesh, 1, 1, policy, True), [PipelineChoice()], RoughEstimate(seconds, 10.0))
        for mesh, times in zip(meshes, [(1.0, 1.1, 1.2), (1.3, 1.4, 1.5)], strict=True)
        for policy, seconds in zip(policies, times, strict=True)
    ]
    ranking = Ranking(guesses, 100.0, is_accepted=lambda each: True)
    first = ranking.take(2)
    assert [each.choice.mesh for each in first] == meshes, "captures that run beside each other are of different meshes"
    ranking = Ranking(guesses, 100.0, is_accepted=lambda each: True)
    (one,) = ranking.take(1)
    ranking.learn(one, 1.0, 10.0)
    assert ranking.take(1)[0].choice.mesh == meshes[1], "a mesh that fits is not tried again before the others"
    ranking = Ranking(guesses, 100.0, is_accepted=lambda each: True)
    (one,) = ranking.take(1)
    ranking.learn(one, 1.0, 110.0)
    assert ranking.take(1)[0].choice == guesses[1].choice, "a mesh whose capture did not fit is tried again"


def test_a_guess_is_corrected_by_captures_of_its_kind():
    slow, fast = (RunChoice(Mesh(dp_shard=8), number, 1, "selective", True) for number in (1, 2))
    others = [RunChoice(Mesh(dp_shard=number, tp=2), 1, 1, "full", True) for number in (1, 2, 4)]
    guesses = [Guessed(slow, [PipelineChoice()], RoughEstimate(2.0, 50.0))]
    guesses += [Guessed(fast, [PipelineChoice()], RoughEstimate(1.9, 130.0))]
    guesses += [
        Guessed(each, [PipelineChoice()], RoughEstimate(1.0 + index, 10.0)) for index, each in enumerate(others)
    ]
    ranking = Ranking(guesses, 100.0, is_accepted=lambda each: each.choice is not others[1])
    (first,) = ranking.take(1)
    assert first.choice is others[0], "the fastest; the one that should not fit is left out"
    ranking.learn(first, 4.0, 20.0)
    assert [each.choice for each in ranking.take(1)] == [slow], "full recomputation is four times slower than guessed"
    assert ranking.take(1, below=3.0) == [], "nothing else should be faster than that"
    assert [each.choice for each in ranking.take(1)] == [others[2]], "the configuration refused the one before"
    ranking.learn(guesses[0], 2.0, 25.0)
    assert [each.choice for each in ranking.take(1)] == [fast], "the kind needs half of what was guessed"

"""Which units a stage runs."""

import itertools
import random

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.pipeline.stage_program import StageProgram
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.stages import balance, plan_stages
from monograph.recipes.catalog import find_recipes, load_recipe
from tests.kit.by_hand import ByHand
from tests.kit.pipelines import make_pass

UNITS = ["embedding", *(f"layers.{n}" for n in range(6)), "head"]


def test_automatic_stages_have_the_smallest_largest_cost_of_all_divisions():
    rng = random.Random(0)
    for _ in range(200):
        costs = [rng.choice((0.1, 1, 1, 2, 5)) for _ in range(rng.randint(1, 9))]
        count = rng.randint(1, len(costs))
        starts = balance(costs, count)
        assert starts[0] == 0 and len(starts) == count and sorted(set(starts)) == starts

        def largest(cuts, costs=costs):
            return max(sum(costs[a:b]) for a, b in itertools.pairwise([*cuts, len(costs)]))

        best = min(largest((0, *cuts)) for cuts in itertools.combinations(range(1, len(costs)), count - 1))
        assert largest(starts) == pytest.approx(best)


def test_embedding_and_head_count_and_equal_layers_are_spread_evenly():
    plan = plan_stages(UNITS, [0, 1, 1, 1, 1, 1, 1, 0], 2, ("auto",))
    assert [len(stage) for stage in plan.stages] == [4, 4]
    heavy = plan_stages(UNITS, [0, 1, 1, 1, 1, 1, 1, 2], 2, ("auto",))
    assert heavy.stages[1] == ("layers.4", "layers.5", "head")


def test_an_explicit_list_names_the_first_units_of_all_stages_but_the_first():
    plan = plan_stages(UNITS, [1] * 8, 3, ("layers.1", "head"))
    assert plan.stages == (("embedding", "layers.0"), tuple(UNITS[2:7]), ("head",))
    assert plan.stage_of("layers.3") == 1
    assert plan.describe() == "0: embedding .. layers.0, 1: layers.1 .. layers.5, 2: head"


@pytest.mark.parametrize(
    ("count", "firsts", "words"),
    [
        (9, ("auto",), "has 8 units"),
        (3, ("layers.1",), "names 1 unit and there are 3 stages"),
        (2, ("layer.1",), "did you mean 'layers.1'"),
        (3, ("layers.3", "layers.1"), "does not come after"),
        (2, ("embedding",), "does not come after"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_the_nearest_that_can(count, firsts, words):
    with pytest.raises(ConfigError, match=words):
        plan_stages(UNITS, [1] * 8, count, firsts)


@pytest.mark.parametrize("name", [name for name in find_recipes() if name.endswith(("debugmodel", "debugmodel_moe"))])
def test_a_config_knows_the_units_of_its_model_before_it_is_built(name):
    config = load_recipe(name).model
    with torch.device("meta"):
        model = config.build()
    assert config.find_units() == tuple(unit.path for unit in model.units())


def test_a_stage_reads_parameters_that_are_moved_while_its_parts_are_built():
    """Merged matmuls let the cache store parameters side by side, after a part that reads one of them was built."""
    hand = ByHand()
    first, second = hand.input("first", 4, 4), hand.input("second", 4, 4)
    alone = hand.call(ATEN.sum.default, first)
    joined = hand.call(ATEN.sum.default, hand.call(ATEN.cat.default, [first, second], 0))
    graph = hand.done(hand.call(ATEN.add.Tensor, alone, joined))
    make_pass("join_parameters").run(graph, Facts())
    parameters = {name: torch.nn.Parameter(torch.zeros(4, 4)) for name in ("first", "second")}
    inputs = StepInputs(parameters, {}, {}, torch.zeros(0, dtype=torch.int64), {})
    losses = []
    program = StageProgram(
        graph, inputs, lambda _, value: losses.append(value.item()), CastWeightCache(parameters), is_split=False
    )
    with torch.no_grad():
        parameters["first"].fill_(1.0)
    program.run(Action(0, ActionKind.FORWARD, 0), {})
    assert losses == [32.0]

"""What is shown of a small copy holds for the run where both have the same structure, and is not claimed elsewhere."""

import pytest

from monograph.config.leaves import replace_leaf
from monograph.recipes.catalog import load_recipe
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.simulate.run import simulate
from monograph.verify.simulate.show import describe_scope

DEGREES = {"shard": "data_parallel_shard_degree", "tp": "tensor_parallel_degree", "ep": "expert_parallel_degree"}
DEGREES |= {"cp": "context_parallel_degree", "pp": "pipeline_parallel_degree"}


def plan(recipe, **degrees):
    config = load_recipe(recipe)
    for name, degree in degrees.items():
        config = replace_leaf(config, f"parallelism.{DEGREES[name]}", degree)
    if "pp" in degrees:
        config = replace_leaf(config, "training.global_batch_size", 8 * degrees.get("shard", 1))
    return config, plan_run_mesh(config, count_ranks(config.parallelism))


CASES = {
    "llama3_8b": {"shard": 8, "cp": 2, "tp": 4},
    "llama3_1b": {"shard": 2, "tp": 2},
    "llama3_3b": {"shard": 2, "pp": 4},
    "gemma3_1b": {"shard": 8, "cp": 2},
    "qwen3_30b_a3b": {"shard": 8, "ep": 4, "tp": 2},
    "gpt_oss_20b": {"shard": 4, "ep": 4},
    "deepseek_v3_16b": {"shard": 16, "tp": 2, "ep": 4},
}
SHORT = ("llama3_1b",)


@pytest.mark.parametrize(
    "recipe", [pytest.param(recipe, marks=() if recipe in SHORT else pytest.mark.long) for recipe in CASES]
)
def test_a_run_has_the_ops_of_its_small_copy(recipe):
    config, mesh = plan(recipe, **CASES[recipe])
    found = simulate(config, mesh)
    assert found.is_equal, found.blame
    captured, optimized = found.structures
    assert captured.is_complete, captured.differences
    assert captured.kinds < captured.units >= 5
    for difference in optimized.differences:
        assert any(difference in line for line in describe_scope(found, config)), "what is not covered is said"

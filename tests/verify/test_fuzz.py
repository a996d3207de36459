"""Random valid meshes and small random models; a fixed handful here, many with `make test-fuzz`."""

import pytest

from tests.verify.fuzz import check_seed, draw

SEEDS = (5, 7, 9, 12, 24, 41, 48)
"""Chosen for what they are made of: see the test below."""


@pytest.mark.parametrize("seed", [*SEEDS[:2], *(pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS[2:])])
def test_a_random_plan_computes_what_one_device_computes(seed, tmp_path):
    assert check_seed(seed, tmp_path) == ""


def test_the_handful_covers_the_axes_and_a_seed_always_stands_for_the_same_plan(tmp_path):
    drawn = [draw(seed, tmp_path) for seed in SEEDS]
    assert drawn == [draw(seed, tmp_path) for seed in SEEDS]
    meshes, configs = [mesh for mesh, _ in drawn], [config for _, config in drawn]
    for axis in ("dp_replicate", "dp_shard", "tp", "ep", "etp"):
        assert any(getattr(mesh, axis) > 1 for mesh in meshes), axis
    assert {config.parallelism.fsdp for config in configs} == {"fsdp2", "graph"}
    assert {config.model.mask for config in configs} == {"causal", "document"}
    assert {config.activation_checkpoint.mode for config in configs} >= {"none", "full"}

"""Random runs on random meshes are simulated as equal; a handful here, many with `make test-fuzz`."""

import pytest

from tests.verify.simulate.mesh_draw import AXES, FAMILIES, SCHEDULES, draw_accepted, draw_run
from tests.verify.simulate.mesh_fuzz import FAULTS, check_agreement, check_mesh, draw_small, find_fault

SEEDS = (2, 18)
AGREE = (1, 4)


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 110))])
def test_a_random_mesh_computes_what_one_device_computes(seed, tmp_path):
    assert check_mesh(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", AGREE)
def test_a_simulation_agrees_with_real_ranks_on_a_fault(seed, tmp_path):
    assert check_agreement(seed, tmp_path)


@pytest.mark.long
def test_the_draws_reach_every_family_axis_schedule_and_fault(tmp_path):
    drawn = [draw_accepted(seed, tmp_path, draw_run)[0] for seed in range(150)]
    assert {each.model for each in drawn} == set(FAMILIES)
    for axis in (*AXES, "ep", "etp"):
        assert any(getattr(each.mesh, axis) > 1 for each in drawn), axis
    assert {each.degrees.get("pipeline_schedule") for each in drawn} == {None, *SCHEDULES}
    assert {find_fault(seed) for seed in range(1000)} == {"", *FAULTS}


@pytest.mark.parametrize("draw", [draw_run, draw_small])
def test_a_seed_always_stands_for_the_same_run(draw, tmp_path):
    first, second = ([draw_accepted(seed, tmp_path, draw)[0] for seed in range(4)] for _ in range(2))
    assert first == second

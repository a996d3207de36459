"""plan: pipelines from the units of one captured step, for every schedule."""

import pytest

from monograph.machine.table import MACHINES
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.builtin import BUILTIN
from monograph.parallel.pipeline.simulate import simulate
from monograph.parallel.pipeline.transfers import with_transfers
from monograph.plan.choice import PipelineChoice
from monograph.plan.pipeline import estimate_pipeline, make_stage_cost
from monograph.plan.rough import count_communicators
from monograph.plan.units import UnitCost, add_units

H100 = MACHINES["H100"]
BLOCK = UnitCost(
    forward_seconds=1.0,
    input_grad_seconds=1.25,
    weight_grad_seconds=0.75,
    parameter_bytes=100,
    trained_bytes=100,
    gradient_bytes=100,
    saved_bytes=40,
    saved_for_weights_bytes=16,
    work_bytes=25,
)
HEAD = UnitCost(forward_seconds=0.5, input_grad_seconds=0.75, weight_grad_seconds=0.5, saved_bytes=8, work_bytes=60)
UNITS = {"block": BLOCK, "head": HEAD}
SCHEDULES = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved_1f1b", 2),
    ("interleaved_1f1b", 4),
    ("zero_bubble", 1),
    ("zbv", 2),
]


def estimate(name, per_rank, *, ranks=4, micro_batches=64, blocks=16, transfer=0.125, has_head=True):
    """A pipeline of so many blocks in equal stages."""
    count = ranks * per_rank
    stages = [("block",) * (blocks // count) for _ in range(count)]
    stages[-1] += ("head",) if has_head else ()
    given = {"units": UNITS, "stages": tuple(stages), "machine": H100, "transfer_seconds": transfer, "state_ratio": 2.0}
    return estimate_pipeline(PipelineChoice(name, per_rank), ranks=ranks, micro_batches=micro_batches, **given), stages


@pytest.mark.parametrize(("name", "per_rank"), SCHEDULES)
def test_two_short_schedules_tell_the_time_and_memory_of_a_long_one(name, per_rank):
    found, stages = estimate(name, per_rank)
    costs = [
        make_stage_cost(
            add_units((UNITS[unit], 1.0) for unit in units),
            is_first=index == 0,
            transfer_seconds=0.125,
            state_ratio=2.0,
        )
        for index, units in enumerate(stages)
    ]
    whole = simulate(with_transfers(BUILTIN[name](4, per_rank, 64)), costs)
    assert 64 * found.busiest.seconds + found.bubble_seconds == pytest.approx(whole.seconds, rel=0.005)
    assert found.memory.peak == pytest.approx(max(whole.peak_bytes), rel=0.005)


@pytest.mark.parametrize("micro_batches", [2, 3, 4, 6, 16, 64])
@pytest.mark.parametrize(("name", "per_rank"), SCHEDULES)
def test_unequal_stages_wait_as_long_as_the_whole_schedule_says(name, per_rank, micro_batches, monkeypatch):
    """A head as slow as five blocks, as a large vocabulary makes it: pipelines take longer to reach a steady pace."""
    if name == "interleaved_1f1b" and micro_batches % 2:
        pytest.skip("micro-batches go through a rank's stages in groups of as many as there are ranks")
    slow = UnitCost(forward_seconds=4.6, input_grad_seconds=0.1, weight_grad_seconds=0.3)
    monkeypatch.setitem(UNITS, "head", slow)
    found, stages = estimate(name, per_rank, ranks=2, micro_batches=micro_batches, blocks=32)
    costs = [
        make_stage_cost(
            add_units((UNITS[unit], 1.0) for unit in units),
            is_first=index == 0,
            transfer_seconds=0.125,
            state_ratio=2.0,
        )
        for index, units in enumerate(stages)
    ]
    whole = simulate(with_transfers(BUILTIN[name](2, per_rank, micro_batches)), costs)
    assert micro_batches * found.busiest.seconds + found.bubble_seconds == pytest.approx(whole.seconds, rel=1e-6)
    assert found.bubble_seconds > 0, "the busiest rank waits for its first micro-batch"
    assert found.idle_seconds / whole.seconds == pytest.approx(whole.bubble, rel=1e-6), "as inspect shows it"
    assert found.memory.peak == pytest.approx(max(whole.peak_bytes), rel=1e-6)


def test_schedules_differ_in_bubble_and_memory_as_they_should():
    bubbles = {
        (name, per_rank): estimate(name, per_rank, transfer=0.0, has_head=False)[0] for name, per_rank in SCHEDULES
    }
    plain = bubbles["1f1b", 1]
    assert plain.bubble_seconds == pytest.approx(3 * plain.busiest.seconds), "(p - 1) (F + B)"
    assert bubbles["interleaved_1f1b", 4].bubble_seconds < bubbles["interleaved_1f1b", 2].bubble_seconds
    assert bubbles["interleaved_1f1b", 2].bubble_seconds < 0.7 * plain.bubble_seconds
    assert bubbles["zero_bubble", 1].bubble_seconds < 0.7 * plain.bubble_seconds
    assert bubbles["gpipe", 1].memory.saved == 64 * 4 * BLOCK.saved_bytes, "all micro-batches wait"
    assert plain.memory.saved == 4 * 4 * BLOCK.saved_bytes, "as many as there are stages"
    assert plain.memory.parameters == 4 * BLOCK.parameter_bytes and plain.memory.optimizer == 8 * BLOCK.trained_bytes


def test_copies_to_the_host_that_take_longer_than_compute_are_waited_for():
    slow = {"block": UnitCost(forward_seconds=1.0, input_grad_seconds=2.0, offloaded_bytes=3 * 64e9)}
    given = {"units": slow, "stages": (("block",), ("block",)), "transfer_seconds": 0.0, "state_ratio": 2.0}
    found = estimate_pipeline(PipelineChoice(), ranks=2, micro_batches=8, machine=H100, **given)
    assert found.busiest.seconds == pytest.approx(6.0), "64 GB/s: three seconds each way"
    assert found.busiest.waits == {"host copies": pytest.approx(3.0)}


def test_plan_counts_communicators_by_what_they_exchange():
    def count(has_overlap=False, **degrees):
        return count_communicators(Mesh(dp_shard=8, **degrees), per_node=8, has_overlap=has_overlap)

    assert count() < 1.5 * 2**30
    assert count(ep=8) - count() > 2 * 2**30 and count(True, ep=8) - count(ep=8) > 2 * 2**30


FORMULAS = {
    ("1f1b", 1): 1 / 16,
    ("interleaved_1f1b", 2): 1 / 32,
    ("interleaved_1f1b", 4): 1 / 64,
    ("zero_bubble", 1): 1 / 48,
}
"""Bubble over ideal time by docs/guides/pipelines.md: two ranks, 16 micro-batches, three equal thirds of a step."""


@pytest.mark.parametrize(("name", "per_rank"), FORMULAS)
def test_equal_stages_have_the_bubble_of_the_guides_formula(name, per_rank):
    block = UnitCost(forward_seconds=1.0, input_grad_seconds=1.0, weight_grad_seconds=1.0)
    stages = (("block",) * (32 // (2 * per_rank)),) * (2 * per_rank)
    found = estimate_pipeline(
        PipelineChoice(name, per_rank),
        ranks=2,
        micro_batches=16,
        units={"block": block},
        stages=stages,
        machine=H100,
        transfer_seconds=0.0,
        state_ratio=2.0,
    )
    expected = FORMULAS[name, per_rank] * 16 * found.busiest.seconds
    assert found.idle_seconds == pytest.approx(expected, rel=1e-9)
    assert found.bubble_seconds == pytest.approx(expected, rel=1e-9)

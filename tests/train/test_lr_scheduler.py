"""The learning rate over a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.errors import ConfigError
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from tests.kit.runs import tiny_run

SHAPES = ("constant", "linear", "cosine", "sqrt")


def build(steps=110, peak=1.0, **settings):
    return WarmupDecayConfig(**{"warmup_steps": 10, "min_factor": 0.1, **settings}).build(peak=peak, steps=steps)


@pytest.mark.parametrize("decay", SHAPES)
def test_warmup_rises_in_equal_steps_to_the_peak(decay):
    scheduler = build(peak=0.02, decay=decay)
    assert [scheduler.lr(step) for step in range(1, 11)] == [0.02 * (step / 10) for step in range(1, 11)]


def test_no_warmup_starts_at_the_peak():
    assert build(warmup_steps=0, decay="constant", peak=0.5).lr(1) == 0.5


def test_constant_keeps_the_peak_to_the_end():
    assert {build(decay="constant").lr(step) for step in range(10, 111)} == {1.0}


@pytest.mark.parametrize(
    ("decay", "half_way", "quarter_way"),
    [
        ("linear", 0.1 + 0.9 * 0.5, 0.1 + 0.9 * 0.75),
        ("cosine", 0.1 + 0.9 * 0.5, 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2),
        ("sqrt", 0.1 + 0.9 * (1 - math.sqrt(0.5)), 0.1 + 0.9 * 0.5),
    ],
)
def test_the_decay_has_the_shape_it_is_named_after(decay, half_way, quarter_way):
    scheduler = build(decay=decay)
    assert scheduler.lr(60) == pytest.approx(half_way, rel=1e-12)
    assert scheduler.lr(35) == pytest.approx(quarter_way, rel=1e-12)


@pytest.mark.parametrize("decay", SHAPES[1:])
def test_the_last_step_is_the_first_at_the_floor(decay):
    scheduler = build(decay=decay, peak=0.02)
    assert scheduler.lr(110) == pytest.approx(0.002, rel=1e-12)
    assert scheduler.lr(109) > 0.002 * (1 + 1e-6)


def test_a_decay_of_part_of_the_run_leaves_the_rest_at_the_peak():
    scheduler = build(decay="linear", decay_fraction=0.2)
    assert {scheduler.lr(step) for step in range(10, 91)} == {1.0}
    assert scheduler.lr(91) < 1.0
    assert scheduler.lr(100) == pytest.approx(0.55, rel=1e-12)


def test_a_warmup_that_is_left_open_is_a_tenth_of_the_schedule():
    scheduler = build(steps=50, warmup_steps=-1, decay="constant")
    assert [scheduler.lr(step) for step in range(1, 7)] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    assert build(steps=3, warmup_steps=-1, decay="constant").lr(1) == 1.0


@pytest.mark.parametrize("changes", [{"training.steps": 4}, {"lr_scheduler.total_steps": 4}], ids=str)
def test_a_warmup_longer_than_the_schedule_is_refused(changes, tmp_path):
    run = {"training.steps": 20, "lr_scheduler.warmup_steps": 5}
    with pytest.raises(ConfigError, match=r"lr_scheduler.warmup_steps is 5 and \S+steps is 4"):
        tiny_run(tmp_path, run | changes)


@given(
    steps=st.integers(1, 60),
    warmup=st.integers(0, 80),
    floor=st.floats(0, 1),
    fraction=st.floats(0, 1),
    decay=st.sampled_from(SHAPES),
)
def test_the_rate_rises_once_then_falls_once_and_stays_between_floor_and_peak(steps, warmup, floor, fraction, decay):
    warmup = min(warmup, steps)
    scheduler = build(steps, warmup_steps=warmup, min_factor=floor, decay_fraction=fraction, decay=decay)
    factors = [scheduler.factor(step) for step in range(1, steps + 1)]
    top = min(warmup, steps)
    assert factors[:top] == sorted(factors[:top])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert all(0 < factor <= 1 for factor in factors[:top])
    assert all(floor - 1e-12 <= factor <= 1 for factor in factors[top:])

"""The learning rate of runs that are continued: never bent, and extended as was decided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.errors import CheckpointError, ConfigError
from monograph.run import train
from monograph.train.lr_plan import plan_lr, read_plan
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from tests.kit.runs import differing, read_records, read_step, tiny_run

PEAK = 0.5


def plan(steps, done=0, saved=None, **settings):
    config = WarmupDecayConfig(**{"warmup_steps": 2, **settings})
    return plan_lr(config, peak=PEAK, steps=steps, done=done, saved=saved)


def rates(planned, last):
    return [planned.plan.lr(step) for step in range(1, last + 1)]


@given(steps=st.integers(3, 40), done=st.integers(0, 40), decay=st.sampled_from(("linear", "cosine", "constant")))
def test_a_run_that_is_continued_with_the_same_length_has_the_same_rates(steps, done, decay):
    whole = plan(steps, decay=decay)
    scheduler = WarmupDecayConfig(warmup_steps=2, decay=decay).build(peak=PEAK, steps=steps)
    assert rates(whole, steps) == [scheduler.lr(step) for step in range(1, steps + 1)]
    again = plan(steps, min(done, steps), whole.plan.to_json(), decay=decay)
    assert rates(again, steps) == rates(whole, steps) and not again.note


@pytest.mark.parametrize("done", [6, 10])
def test_a_run_that_is_extended_asks_for_a_decision(done):
    saved = plan(10).plan.to_json()
    with pytest.raises(ConfigError, match=r"steps is 20 .* planned for 10 steps") as error:
        plan(20, done, saved)
    assert "--lr_scheduler.on_extend hold" in error.value.do and "redecay" in error.value.do


@pytest.mark.parametrize("done", [6, 10])
def test_a_held_rate_follows_the_old_schedule_and_then_stays(done):
    before = plan(10)
    held = plan(20, done, before.plan.to_json(), on_extend="hold")
    assert rates(held, 20) == [*rates(before, 10), *[before.plan.lr(10)] * 10]
    assert "holds at 0.05 after step 10" in held.note
    assert rates(plan(20, 15, held.plan.to_json()), 20) == rates(held, 20), "and asks no second time"


@pytest.mark.parametrize("done", [6, 10])
def test_a_new_decay_begins_at_the_rate_that_was_reached_and_ends_at_the_floor(done):
    before = plan(10)
    extended = plan(30, done, before.plan.to_json(), on_extend="redecay")
    found = rates(extended, 30)
    assert found[:done] == rates(before, done)
    assert found[done] >= found[done - 1] and max(found[done:]) == PEAK
    assert found[-1] == pytest.approx(0.1 * PEAK)
    top = found.index(PEAK, done)
    assert found[done:top] == sorted(found[done:top]) and found[top:] == sorted(found[top:], reverse=True)
    assert rates(plan(30, 25, extended.plan.to_json()), 30) == found, "the checkpoint keeps the decision"


def test_a_schedule_that_has_not_begun_to_decay_is_extended_without_a_question():
    late = {"decay": "linear", "decay_fraction": 0.25}
    before = plan(42, **late)
    extended = plan(82, 30, before.plan.to_json(), **late)
    assert rates(extended, 30) == rates(before, 30) and not extended.note
    assert rates(extended, 82) == rates(plan(82, **late), 82)
    with pytest.raises(ConfigError, match="on_extend"):
        plan(82, 40, before.plan.to_json(), **late)


def test_a_constant_rate_is_extended_without_a_question():
    before = plan(10, decay="constant")
    assert rates(plan(20, 10, before.plan.to_json(), decay="constant"), 20)[9:] == [PEAK] * 11


def test_a_run_that_ends_sooner_keeps_its_schedule_and_says_so():
    before = plan(20)
    shorter = plan(12, 8, before.plan.to_json())
    assert rates(shorter, 12) == rates(before, 12)
    assert "keeps its schedule of 20 steps" in shorter.note


def test_the_schedule_can_be_shorter_than_the_run():
    assert rates(plan(20, total_steps=10), 20) == [*rates(plan(10), 10), *[plan(10).plan.lr(10)] * 10]


def test_a_new_decay_without_room_for_its_warmup_is_refused():
    with pytest.raises(ConfigError, match="warmup_steps is 5 and the steps that are left after step 10 is 3"):
        plan(13, 10, plan(10, warmup_steps=5).plan.to_json(), warmup_steps=5, on_extend="redecay")


@pytest.mark.parametrize(
    "saved", [{}, {"total": 5, "stretches": []}, {"total": 5, "stretches": [[3, 2, 0.0]]}, {"total": "x"}], ids=str
)
def test_a_plan_that_makes_no_sense_is_refused(saved):
    with pytest.raises(CheckpointError, match="learning rate plan cannot be read"):
        read_plan(saved, WarmupDecayConfig(), peak=PEAK)


@pytest.mark.parametrize("decision", ["hold", "redecay"])
def test_a_run_that_is_extended_does_what_was_decided(tmp_path, decision):
    """Also when it is stopped on the way: the rates of the rest are those of the run that was not."""
    start = {"training.steps": 4, "checkpoint.interval": 2}
    extend = {"training.steps": 10, "checkpoint.load": "latest", "lr_scheduler.on_extend": decision}
    for name in ("whole", "halves"):
        train(tiny_run(tmp_path / name, start))
        with pytest.raises(ConfigError, match="on_extend"):
            train(tiny_run(tmp_path / name, {**start, "training.steps": 10, "checkpoint.load": "latest"}))
    train(tiny_run(tmp_path / "whole", extend))
    train(tiny_run(tmp_path / "halves", {**extend, "checkpoint.interval": 3, "lr_scheduler.total_steps": 10}))
    train(tiny_run(tmp_path / "halves", {"training.steps": 10, "checkpoint.load": "6"}))
    lr = [[record["lr"] for record in read_records(tmp_path / name)] for name in ("whole", "halves")]
    assert lr[0] == lr[1] and len(lr[0]) == 10
    assert (max(lr[0][4:]) > lr[0][3]) == (decision == "redecay")
    assert differing(read_step(tmp_path / "whole", 10), read_step(tmp_path / "halves", 10)) == []

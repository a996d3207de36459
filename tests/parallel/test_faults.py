"""A rank that dies or computes nonsense: the others notice at once, and nothing that was saved is lost."""

import time

import pytest
import torch

from tests.kit.ranks import RankDied, pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import run_trainer, train_and_die, train_into_nan

LAYOUTS = {
    "fsdp": (2, {}, (1,)),
    "ep": (2, {"ep": 2, "fsdp": "graph"}, (0,)),
    "fsdp_tp_ep": (4, {"tp": 2, "ep": 2}, (2,)),
}
"""Ranks, degrees, and who is killed."""
STEPS = {"training.steps": 4, "checkpoint.interval": 2, "model.n_layers": 2, "checkpoint.load": "auto"}


def bits_of(trained):
    return {name: value.clone() for name, value in (trained.parameters | trained.moments).items()}


@pytest.mark.parametrize(
    "layout", ["fsdp_tp_ep", *(pytest.param(name, marks=pytest.mark.long) for name in LAYOUTS if name != "fsdp_tp_ep")]
)
def test_the_others_end_within_seconds_of_a_kill_and_the_next_try_has_the_same_bits(layout, tmp_path):
    ranks, degrees, victims = LAYOUTS[layout]
    unbroken = bits_of(pool.run(ranks, run_trainer, tiny("deepseek_v3", tmp_path / "unbroken", STEPS, **degrees))[0])
    for victim in victims:
        folder = tmp_path / f"victim-{victim}"
        config = tiny("deepseek_v3", folder, STEPS, **degrees)
        with pytest.raises(RankDied, match=f"rank {victim} was killed by SIGKILL") as caught:
            pool.run(ranks, train_and_die, config, victim, 3, folder / "died")
        assert caught.value.late == ()
        assert time.monotonic() - float((folder / "died").read_text()) < 5
        resumed = bits_of(pool.run(ranks, run_trainer, config)[0])
        assert [name for name in unbroken if not torch.equal(unbroken[name], resumed[name])] == []


def test_one_ranks_broken_gradient_stops_all_ranks_at_the_same_step_with_good_parameters(tmp_path):
    changes = {**STEPS, "checkpoint.load": "", "checkpoint.interval": 0, "training.steps": 6}
    good = tiny("deepseek_v3", tmp_path / "good", {**changes, "training.steps": 2, "lr_scheduler.decay": "constant"})
    expected = pool.run(2, run_trainer, good)[0]
    config = tiny("deepseek_v3", tmp_path / "bad", {**changes, "lr_scheduler.decay": "constant"})
    answers = pool.run(2, train_into_nan, config, 1, 3)
    assert all("step 3" in said and "gradient norm nan" in said for said, _ in answers)
    left = answers[0][1].parameters
    weights = [name for name in left if not name.endswith("expert_bias")]
    assert [name for name in weights if not torch.equal(left[name], expected.parameters[name])] == []

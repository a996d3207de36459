"""A router that collapses is named in words, once."""

from unittest import mock

import pytest

from monograph.models.config import MoeConfig, RouterConfig
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.train import load_monitor
from monograph.train.load_monitor import LoadMonitor


def make_moe(n_experts=64, top_k=6, **values) -> MoeConfig:
    return MoeConfig(n_experts=n_experts, hidden_dim=4, router=RouterConfig(top_k=top_k), **values)


def watch(moe, loads, *, limit=3.0, patience=4):
    """The lines a monitor writes for these loads, one list of layers a step."""
    monitor = LoadMonitor(moe, limit=limit, patience=patience)
    with mock.patch.object(load_monitor, "log") as log:
        for step, layers in enumerate(loads, 1):
            monitor.add({"step": step, "expert_load": {"max_over_mean": layers}})
    return [call[0] + ": " + call.args[0] % call.args[1:] for call in log.method_calls]


def test_a_layer_that_stays_above_the_limit_is_named_once_with_what_to_do():
    lines = watch(make_moe(), [[1.5, 10.67]] * 9)
    assert len(lines) == 1
    assert lines[0].startswith("warning: step 4: uneven expert load: in 1 of 2 MoE layers (1)")
    assert "more than 3.00 times the mean load for 4 steps, now up to 10.67 (10.67 means" in lines[0]
    assert lines[0].endswith("nothing balances them: --model.moe.balance.coefficient 0.001")


def test_a_load_that_comes_back_below_the_limit_in_time_is_no_reason_to_warn():
    assert watch(make_moe(), [[5.0], [5.0], [5.0], [2.0]] * 5) == []


def test_recovery_is_said_and_a_second_collapse_is_named_again():
    lines = watch(make_moe(), [[5.0]] * 5 + [[1.1]] + [[5.0]] * 5)
    assert [line.split(":")[0] for line in lines] == ["warning", "info", "warning"]


def test_few_experts_have_a_limit_that_a_collapse_can_reach():
    """8 experts, 3 a token: the busiest can have 2.67 times the mean."""
    assert "more than 2.00 times" in watch(make_moe(8, 3), [[2.6]] * 4)[0]
    assert watch(make_moe(8, 3), [[1.9]] * 9) == []


@pytest.mark.parametrize(
    ("moe", "advice"),
    [
        (make_moe(balance=LoadBalanceConfig(coefficient=0.001)), "raise --model.moe.balance.coefficient (now 0.001)"),
        (
            make_moe().replace(router=RouterConfig(top_k=6, expert_bias=True)),
            "raise --model.moe.router.bias_update_rate (now 0.001)",
        ),
    ],
)
def test_the_advice_follows_from_what_balances_the_run_already(moe, advice):
    assert watch(moe, [[9.0]] * 4)[0].endswith(advice)


def test_dense_models_and_a_limit_of_zero_never_warn():
    assert watch(None, [[9.0]] * 9) == []
    assert watch(make_moe(), [[9.0]] * 9, limit=0.0) == []

"""AdamW by name: the numbers are torch's own, and a number that is not finite changes nothing."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.train.optimizer_config import AdamWConfig

TORCHS = ("fused", "foreach", "for_loop")
IMPLEMENTATIONS = (*TORCHS, "single_pass")
FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(1.0)}


def make_parameters():
    generator = torch.Generator().manual_seed(1)
    shapes = {"layers.0.wq.weight": (8, 4), "experts.w1": (3, 5, 4), "norm.weight": (7,), "bias": (3,)}
    return {
        name: torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float32))
        for name, shape in shapes.items()
    }


def set_gradients(parameters, step):
    generator = torch.Generator().manual_seed(100 + step)
    for parameter in parameters.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def copies(optimizer):
    state = {name: p.detach().clone() for name, p in optimizer.parameters.items()}
    return state | {name: moment.clone() for name, moment in optimizer.state().items()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


@pytest.mark.parametrize("implementation", TORCHS)
def test_updates_equal_those_of_torchs_adamw_bit_for_bit(implementation):
    mine, theirs = make_parameters(), make_parameters()
    config = AdamWConfig(beta1=0.8, beta2=0.9, eps=1e-6, weight_decay=0.3, implementation=implementation)
    optimizer = config.build(parameters=mine)
    matrices = [p for p in theirs.values() if p.ndim >= 2]
    vectors = [p for p in theirs.values() if p.ndim < 2]
    reference = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.8, 0.9),
        eps=1e-6,
        fused=implementation == "fused",
        foreach=implementation == "foreach",
    )
    for step, lr in enumerate([1e-3, 5e-2, 2e-2, 1e-4], start=1):
        set_gradients(mine, step)
        set_gradients(theirs, step)
        for group in reference.param_groups:
            group["lr"] = lr
        optimizer.step(lr, **FINE)
        reference.step()
        assert_same(mine, theirs)
    for (kind, name), moment in optimizer.state().items():
        assert torch.equal(moment, reference.state[theirs[name]][kind])


def test_the_implementations_agree_up_to_rounding():
    results = []
    for implementation in IMPLEMENTATIONS:
        parameters = make_parameters()
        optimizer = AdamWConfig(implementation=implementation).build(parameters=parameters)
        for step in range(1, 6):
            set_gradients(parameters, step)
            optimizer.step(1e-2, **FINE)
        results.append(parameters)
    for other in results[1:]:
        for name, parameter in results[0].items():
            torch.testing.assert_close(other[name], parameter, rtol=1e-6, atol=1e-7)


def test_auto_takes_the_fused_kernel_where_the_device_has_one():
    assert AdamWConfig(implementation="auto").build(parameters=make_parameters()).is_fused
    assert not AdamWConfig(implementation="for_loop").build(parameters=make_parameters()).is_fused


def test_fused_on_a_device_without_it_is_refused_with_the_way_out():
    elsewhere = {"w": torch.empty(2, 2, device="meta")}
    with pytest.raises(ConfigError, match=r"(?s)no fused AdamW for meta.*--optimizer.implementation auto"):
        AdamWConfig(implementation="fused").build(parameters=elsewhere)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_weight_decay_shrinks_matrices_and_leaves_norms_and_biases_alone(implementation):
    parameters, start = make_parameters(), make_parameters()
    optimizer = AdamWConfig(weight_decay=0.5, implementation=implementation).build(parameters=parameters)
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1, **FINE)
    for name, parameter in parameters.items():
        wanted = start[name] * (1 - 0.1 * 0.5) if parameter.ndim >= 2 else start[name]
        torch.testing.assert_close(parameter, wanted, rtol=1e-7, atol=0)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_moments_and_count_put_into_a_new_optimizer_continue_the_old_one(implementation):
    parameters = make_parameters()
    config = AdamWConfig(implementation=implementation)
    optimizer = config.build(parameters=parameters)
    for step in (1, 2):
        set_gradients(parameters, step)
        optimizer.step(1e-2, **FINE)
    again = {name: torch.nn.Parameter(p.detach().clone()) for name, p in parameters.items()}
    resumed = config.build(parameters=again)
    for name, moment in resumed.state().items():
        moment.copy_(optimizer.state()[name])
    resumed.set_updates(2)
    for each, weights in ((optimizer, parameters), (resumed, again)):
        set_gradients(weights, 3)
        each.step(1e-2, **FINE)
    assert_same(copies(optimizer), copies(resumed))


@pytest.mark.parametrize("bad", [{"grad_norm": torch.tensor(float("nan"))}, {"loss": torch.tensor(float("inf"))}])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_number_that_is_not_finite_stops_this_update_and_all_later_ones(implementation, bad):
    parameters = make_parameters()
    optimizer = AdamWConfig(implementation=implementation).build(parameters=parameters)
    set_gradients(parameters, 1)
    optimizer.step(1e-2, **FINE)
    before = copies(optimizer)
    set_gradients(parameters, 2)
    optimizer.step(1e-2, **(FINE | bad))
    assert_same(copies(optimizer), before)
    set_gradients(parameters, 3)
    optimizer.step(1e-2, **FINE)
    assert_same(copies(optimizer), before)


def test_gradients_are_gone_after_they_are_cleared():
    parameters = make_parameters()
    optimizer = AdamWConfig().build(parameters=parameters)
    set_gradients(parameters, 1)
    optimizer.clear_gradients()
    assert all(parameter.grad is None for parameter in parameters.values())


def test_a_gradient_that_lies_differently_in_memory_is_the_same_gradient():
    results = []
    for transposed in (False, True):
        parameters = make_parameters()
        optimizer = AdamWConfig(implementation="single_pass").build(parameters=parameters)
        set_gradients(parameters, 1)
        if transposed:
            matrix = parameters["layers.0.wq.weight"]
            matrix.grad = matrix.grad.t().contiguous().t()
        optimizer.step(1e-2, **FINE)
        results.append(copies(optimizer))
    assert_same(*results)

"""The compiled update: one kernel for every parameter, so that no size and no learning rate is a new graph."""

import pytest
import torch

from monograph.execute.layer import CountingBackend
from monograph.train.optimizer_config import AdamWConfig

FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(1.0)}
RATES = (1e-3, 5e-2, 2e-2, 1e-4)


def make_optimizer(backend=None, **changes):
    generator = torch.Generator().manual_seed(1)
    shapes = {"layers.0.wq.weight": (8, 4), "experts.w1": (3, 5, 4), "norm.weight": (7,), "bias": (3,)}
    parameters = {name: torch.nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in shapes.items()}
    optimizer = AdamWConfig(weight_decay=0.3, **changes).build(parameters=parameters)
    if backend is not None:
        optimizer.compile(backend)
    return optimizer


def update(optimizer, rates=RATES, **verdict):
    for step, lr in enumerate(rates):
        generator = torch.Generator().manual_seed(100 + step)
        for parameter in optimizer.parameters.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(lr, **{**FINE, **verdict})
        optimizer.clear_gradients()


def copies(optimizer):
    state = {name: parameter.detach().clone() for name, parameter in optimizer.parameters.items()}
    return state | {" ".join(name): moment.clone() for name, moment in optimizer.state().items()}


def assert_close(one, other):
    """Equal up to the last bits: the compiled form does the same sums in another order."""
    for name, value in copies(one).items():
        torch.testing.assert_close(
            value, copies(other)[name], rtol=2e-6, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.parametrize("implementation", ["auto", "foreach", "for_loop"])
def test_compiled_updates_are_those_of_the_uncompiled_optimizer(implementation):
    backend = CountingBackend("aot_eager")
    compiled, plain = make_optimizer(backend, implementation=implementation), make_optimizer()
    update(compiled)
    update(plain)
    assert_close(compiled, plain)
    assert backend.graphs == 1, "one for all parameters, whatever their size, their decay and the rate"


def test_a_resumed_compiled_optimizer_goes_on_where_the_plain_one_would():
    compiled, plain = make_optimizer(CountingBackend("aot_eager")), make_optimizer()
    for optimizer in (compiled, plain):
        optimizer.set_updates(1000)
        update(optimizer)
    assert_close(compiled, plain)


def test_compiling_an_optimizer_twice_changes_nothing():
    first, second = CountingBackend("eager"), CountingBackend("eager")
    optimizer = make_optimizer(first)
    optimizer.compile(second)
    update(optimizer)
    assert (first.graphs, second.graphs) == (1, 0)


def test_a_number_that_is_not_finite_changes_nothing_under_compile_either():
    optimizer = make_optimizer(CountingBackend("eager"))
    update(optimizer)
    before = copies(optimizer)
    update(optimizer, RATES[:1], grad_norm=torch.tensor(float("nan")))
    update(optimizer, RATES[:1])
    after = copies(optimizer)
    assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_parameters_without_gradients_are_left_alone():
    optimizer = make_optimizer(CountingBackend("eager"))
    before = copies(optimizer)
    for name, parameter in optimizer.parameters.items():
        parameter.grad = torch.ones_like(parameter) if name == "experts.w1" else None
    optimizer.step(0.1, **FINE)
    changed = {name for name, value in copies(optimizer).items() if not torch.equal(before[name], value)}
    assert changed == {"experts.w1", "exp_avg experts.w1", "exp_avg_sq experts.w1"}


@pytest.mark.parametrize("implementation", ["auto", "foreach"])
def test_compiled_updates_clip_like_the_others(implementation):
    compiled, plain = make_optimizer(CountingBackend("aot_eager")), make_optimizer(implementation=implementation)
    for optimizer in (compiled, plain):
        update(optimizer, max_norm=0.25, grad_norm=torch.tensor(2.0))
    assert_close(compiled, plain)
    assert not torch.equal(copies(compiled)["bias"], copies(make_optimizer())["bias"])


def test_a_compiler_takes_over_an_update_of_a_single_pass():
    backend = CountingBackend("aot_eager")
    compiled, plain = make_optimizer(backend, implementation="single_pass"), make_optimizer()
    for optimizer in (compiled, plain):
        update(optimizer)
    assert_close(compiled, plain)
    assert backend.graphs == 1

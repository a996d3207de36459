"""Dropout: the mask follows from seed, stream and positions, in eager mode, in a graph, in parts, and in backward."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.capture.failure import CaptureError
from monograph.errors import ConfigError
from monograph.models.dropout import Dropout, element_positions
from monograph.models.feed_forward import FeedForward
from monograph.parallel.groups import fake_groups
from monograph.train.layout import plan_run_mesh
from tests.graph.captured_ops import Case, make_config
from tests.kit.capture import prepare

ROWS, WIDTH = 12, 16
SEED = torch.tensor(3)
POSITIONS = element_positions(torch.arange(ROWS), torch.arange(WIDTH), WIDTH)


def make_value():
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(0))


def test_positions_count_the_elements_of_the_whole_tensor():
    assert torch.equal(POSITIONS, torch.arange(ROWS * WIDTH).view(ROWS, WIDTH))
    part = element_positions(torch.arange(4, 8), torch.arange(8, 16), WIDTH)
    assert torch.equal(part, POSITIONS[4:8, 8:])


def test_every_shard_drops_what_the_whole_tensor_drops_there():
    module, value = Dropout(0.4, "layers.0.dropout"), make_value()
    whole = module(value, SEED, POSITIONS)
    assert 0 < (whole == 0).sum() < whole.numel()
    for rows in (slice(0, 6), slice(6, 12), slice(3, 4)):
        for columns in (slice(0, 8), slice(8, 16)):
            part = element_positions(torch.arange(ROWS)[rows], torch.arange(WIDTH)[columns], WIDTH)
            assert torch.equal(whole[rows, columns], module(value[rows, columns], SEED, part))


def test_seeds_and_streams_have_masks_of_their_own():
    value = torch.ones(ROWS, WIDTH)
    masks = [Dropout(0.5, name)(value, torch.tensor(seed), POSITIONS) for seed in (1, 2) for name in ("a", "b")]
    assert not any(torch.equal(one, other) for n, one in enumerate(masks) for other in masks[:n])


def test_evaluation_and_probability_zero_change_nothing():
    value = make_value()
    assert Dropout(0.5, "a").eval()(value, SEED, POSITIONS) is value
    assert Dropout(0.0, "a")(value, SEED, POSITIONS) is value
    with pytest.raises(ConfigError, match="must be >= 0 and < 1, got 1"):
        Dropout(1.0, "a")


def test_backward_is_the_gradient_by_finite_differences():
    module, value = Dropout(0.3, "a"), make_value().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda value: module(value, SEED, POSITIONS), (value,))


def test_a_captured_step_with_dropout_equals_eager_bit_for_bit_for_every_seed():
    module, weight = Dropout(0.3, "a"), make_value()

    def step(value, weight, seed, positions):
        weight = weight.detach().requires_grad_()
        loss = (module(value * weight, seed, positions) ** 2).sum()
        return loss.detach(), *torch.autograd.grad(loss, weight)

    graph = make_fx(step, tracing_mode="fake")(make_value(), weight, SEED, POSITIONS)
    assert sum("monograph.dropout" in str(node.target) for node in graph.graph.nodes) == 2, "forward and backward"
    results = []
    for number in (3, 4):
        args = make_value(), weight, torch.tensor(number), POSITIONS
        results.append(graph(*args))
        assert all(map(torch.equal, results[-1], step(*args)))
    assert not torch.equal(results[0][1], results[1][1]), "the seed is an input of the graph"


def test_recomputing_activations_draws_the_same_mask():
    module, value = Dropout(0.3, "a"), make_value().requires_grad_()
    gradients = []
    for run in (
        lambda function, x: function(x),
        lambda function, x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False),
    ):
        result = run(lambda x: module(x.sin(), SEED, POSITIONS).cos(), value)
        gradients += torch.autograd.grad(result.sum(), value)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("drop", [torch.nn.functional.dropout, torch.rand_like, torch.bernoulli])
def test_torchs_own_random_ops_are_refused_in_graphs_with_this_as_the_advice(drop, monkeypatch):
    honest = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: honest(self, x) * drop(x.sigmoid()))
    config = make_config(Case("llama3", "1"))
    with fake_groups(plan_run_mesh(config, 1), 0, torch.device("cpu")) as groups:
        prepared = prepare(config, groups)
        with pytest.raises(CaptureError) as error:
            prepared.capture("step")
    assert "random numbers" in error.value.why
    assert "monograph.kernels.random" in error.value.do and "monograph.models.dropout" in error.value.do

"""Dropout: the mask follows from seed, path and position, in eager mode, in a graph, in parts, and in backward."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.axes import COORDS, Axis
from monograph.capture.block_repeats import find_block_repeats
from monograph.capture.failure import CaptureError
from monograph.errors import ConfigError
from monograph.models.dropout import Dropout
from monograph.models.feed_forward import FeedForward
from monograph.models.init import reset
from monograph.models.sequence_part import WHOLE, SequencePart
from monograph.parallel.groups import fake_groups
from monograph.parallel.random_positions import ShardedRowStarts
from monograph.train.layout import plan_run_mesh
from tests.graph.captured_ops import Case, make_config
from tests.kit.capture import prepare
from tests.kit.tiny import tiny

BATCH, LENGTH, WIDTH = 3, 8, 16
SEED = torch.tensor(3)
TOKENS = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH)


def make_dropout(probability=0.4, path="layers.0.dropout", **options):
    module = Dropout(probability, **options)
    module.reset_at(path)
    return module


def make_value():
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(0))


def coords_of(rank):
    return torch.tensor([rank if axis is Axis.TP else 0 for axis in COORDS])


def test_every_row_of_the_batch_drops_what_it_drops_in_any_other_batch():
    module, value = make_dropout(), make_value()
    whole = module(value, SEED, TOKENS)
    assert 0 < (whole == 0).sum() < whole.numel()
    assert torch.equal(whole[1:2, 3:], module(value[1:2, 3:], SEED, TOKENS[1:2, 3:]))


@pytest.mark.parametrize(("shared", "dim"), [("sequence", 1), ("channels", 2)])
def test_tensor_parallel_ranks_drop_what_one_device_drops(shared, dim):
    module, value = make_dropout(shared=shared), make_value()
    whole = module(value, SEED, TOKENS)
    parts = []
    for rank, part in enumerate(value.chunk(2, dim)):
        module.find_starts = ShardedRowStarts(coords_of(rank), 2, shared)
        parts.append(module(part, SEED, TOKENS))
    assert torch.equal(torch.cat(parts, dim), whole)


def test_seeds_and_modules_have_masks_of_their_own():
    value = torch.ones(BATCH, LENGTH, WIDTH)
    model = nn.ModuleList([Dropout(0.5), Dropout(0.5)])
    reset(model)
    masks = [module(value, torch.tensor(seed), TOKENS) for seed in (1, 2) for module in model]
    assert not any(torch.equal(one, other) for n, one in enumerate(masks) for other in masks[:n])


def test_evaluation_and_probability_zero_change_nothing():
    value = make_value()
    assert make_dropout().eval()(value, SEED, TOKENS) is value
    assert make_dropout(0.0)(value, SEED, TOKENS) is value
    with pytest.raises(ConfigError, match="must be >= 0 and < 1, got 1"):
        Dropout(1.0)


def test_backward_is_the_gradient_by_finite_differences():
    module, value = make_dropout(), make_value().double().requires_grad_()
    assert torch.autograd.gradcheck(lambda value: module(value, SEED, TOKENS), (value,))


def test_a_captured_step_with_dropout_equals_eager_bit_for_bit_for_every_seed():
    module, weight = make_dropout(), make_value()

    def step(value, weight, seed, tokens):
        weight = weight.detach().requires_grad_()
        loss = (module(value * weight, seed, tokens) ** 2).sum()
        return loss.detach(), *torch.autograd.grad(loss, weight)

    graph = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(make_value(), weight, SEED, TOKENS)
    assert sum("monograph.dropout" in str(node.target) for node in graph.graph.nodes) == 2, "forward and backward"
    results = []
    for number in (3, 4):
        args = make_value(), weight, torch.tensor(number), TOKENS
        results.append(graph(*args))
        assert all(map(torch.equal, results[-1], step(*args)))
    assert not torch.equal(results[0][1], results[1][1]), "the seed is an input of the graph"


def test_recomputing_activations_draws_the_same_mask():
    module, value = make_dropout(), make_value().requires_grad_()
    gradients = []
    for run in (
        lambda function, x: function(x),
        lambda function, x: torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False),
    ):
        result = run(lambda x: module(x.sin(), SEED, TOKENS).cos(), value)
        gradients += torch.autograd.grad(result.sum(), value)
    assert torch.equal(*gradients)


def test_tokens_are_numbered_by_sample_and_place_whatever_part_of_the_sequence_a_rank_has(tmp_path):
    model = tiny("llama3", tmp_path, {"model.dropout": 0.1}).model.build()
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    batch = {"tokens": tokens, "labels": tokens, "samples": torch.tensor([5, 9])}
    whole = model.step_inputs(batch, WHOLE)["token_index"]
    assert torch.equal(whole, torch.tensor([[40], [72]]) + torch.arange(8))
    part = model.step_inputs(batch, SequencePart(1, 2))["token_index"]
    assert torch.equal(part, whole[:, [2, 3, 4, 5]])


def test_a_dropout_that_is_no_probability_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="dropout must be >= 0 and < 1, got 1"):
        tiny("llama3", tmp_path, {"model.dropout": 1.0})


@pytest.mark.long
def test_blocks_with_dropout_are_captured_once_and_copied(tmp_path):
    config = tiny("llama3", tmp_path, {"model.dropout": 0.1, "model.n_layers": 5, "compile.mode": "graph"})
    with fake_groups(plan_run_mesh(config, 1), 0, torch.device("cpu")) as groups:
        prepared = prepare(config, groups)
        assert find_block_repeats(prepared.source.model, prepared.source.table)
        replicated, whole = prepared.capture("step"), prepared.capture("step", repeats=[])
    assert replicated.text(folded=False) == whole.text(folded=False)


@pytest.mark.parametrize("drop", [torch.nn.functional.dropout, torch.rand_like, torch.bernoulli])
def test_torchs_own_random_ops_are_refused_in_graphs_with_this_as_the_advice(drop, monkeypatch):
    honest = FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: honest(self, x) * drop(x.sigmoid()))
    config = make_config(Case("llama3", "1"))
    with fake_groups(plan_run_mesh(config, 1), 0, torch.device("cpu")) as groups:
        prepared = prepare(config, groups)
        with pytest.raises(CaptureError) as error:
            prepared.capture("step")
    assert "global generator" in error.value.why
    assert "mg.random_uniform" in error.value.do and "mg.Dropout" in error.value.do

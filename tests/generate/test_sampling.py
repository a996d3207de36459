"""Choosing the next token."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.generate.sampling import Sampler, Sampling, draw_tokens, penalize

LOGITS = torch.log(torch.tensor([[0.1, 0.5, 0.15, 0.25]], dtype=torch.float64))


def test_tokens_are_drawn_as_often_as_they_are_likely():
    draws = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    found = torch.tensor(draw_tokens(LOGITS.expand(10_000, -1), draws, 1.0)).bincount(minlength=4)
    assert (found / 10_000 - LOGITS[0].exp()).abs().max() < 1e-3


def test_top_p_leaves_the_fewest_tokens_that_have_the_share():
    draws = torch.linspace(0, 1 - 1e-12, 1000, dtype=torch.float64)
    for top_p, expected in ((0.4, {1}), (0.5, {1}), (0.6, {1, 3}), (0.76, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        assert set(draw_tokens(LOGITS.expand(1000, -1), draws, top_p)) == expected, top_p


def test_a_row_draws_the_same_whatever_stands_beside_it():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together = Sampler(Sampling(temperature=1.0, seed=3), range(3))
    alone = Sampler(Sampling(temperature=1.0, seed=3), [1])
    for _ in range(5):
        assert together.choose(logits, [])[1] == alone.choose(logits[1:2], [])[0]


def test_a_penalty_makes_seen_tokens_less_likely_whatever_their_sign():
    found = penalize(torch.tensor([[2.0, -2.0, 1.0]]), [[0, 1, 1]], 2.0)
    assert found.tolist() == [[1.0, -4.0, 1.0]]


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-39, 1e-300, 5e-324])
def test_a_tiny_temperature_takes_the_likeliest_token(temperature):
    logits = torch.tensor([[-1.0, 3.0, 2.999, -torch.inf], [5.0, -300.0, 4.0, 1e30]])
    for top_p in (1e-6, 0.5, 1.0):
        sampler = Sampler(Sampling(temperature=temperature, top_p=top_p), range(2))
        assert all(sampler.choose(logits, []) == [1, 3] for _ in range(20))


@pytest.mark.parametrize("temperature", [1e-6, 0.7, 1.0, 100.0])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 1.0])
def test_draws_never_leave_the_vocabulary_or_reach_what_is_impossible(temperature, top_p):
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 1.0]])
    for draw in (0.0, 0.5, 1 - 2**-53):
        assert draw_tokens(logits / temperature, torch.tensor([draw], dtype=torch.float64), top_p)[0] in (0, 1, 3)


@pytest.mark.parametrize(
    "given",
    [{"temperature": value} for value in (-1e-9, float("inf"), float("nan"))]
    + [{"top_p": value} for value in (0.0, -1.0, 1.0001, float("nan"))]
    + [{"repetition_penalty": value} for value in (0.0, -1.0, float("inf"), float("nan"))],
)
def test_settings_outside_their_range_are_refused_by_name(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        Sampling(**given)

"""The loss is plain cross entropy, gradients included, without the logits ever existing as a whole."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.models.config import LossConfig
from tests.kit.small import batch, build, small_qwen3

TOKENS, DIM, VOCAB = 50, 24, 80


def inputs(dtype=torch.float32, *, ignored: bool = True):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, TOKENS // 2, DIM, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(VOCAB, DIM, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, VOCAB, (2, TOKENS // 2), generator=generator)
    if ignored:
        labels[torch.rand(labels.shape, generator=generator) < 0.3] = -100
        labels[1, -8:] = -100  # a whole slice without labels, for slices of 7
    return hidden, weight, labels


def reference_loss(hidden, weight, labels, reduction="mean"):
    return F.cross_entropy((hidden @ weight.T).float().flatten(0, 1), labels.flatten(), reduction=reduction)


@pytest.mark.parametrize("chunk_tokens", [1, 7, 25, 50, 1000])
@pytest.mark.parametrize("ignored", [False, True])
def test_loss_and_gradients_equal_cross_entropy(chunk_tokens, ignored):
    hidden, weight, labels = inputs(ignored=ignored)
    expected = reference_loss(hidden, weight, labels)
    expected_grads = torch.autograd.grad(expected, (hidden, weight))
    loss = LossConfig(chunk_tokens=chunk_tokens).build()(hidden, weight, labels)
    grads = torch.autograd.grad(loss, (hidden, weight))
    assert loss.dtype == torch.float32 and loss.shape == ()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for found, right in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-7)


def test_the_sum_is_divided_by_the_count_that_was_given():
    hidden, weight, labels = inputs()
    loss = LossConfig(chunk_tokens=7).build()(hidden, weight, labels, torch.tensor(1000))
    expected = reference_loss(hidden, weight, labels, "sum") / 1000
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    found, right = (torch.autograd.grad(value, hidden)[0] for value in (loss, expected))
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-9)


def test_micro_batches_add_up_to_the_whole():
    hidden, weight, labels = inputs()
    loss, valid = LossConfig(chunk_tokens=16).build(), (labels != -100).sum()
    whole = torch.autograd.grad(loss(hidden, weight, labels), weight)[0]
    parts = [torch.autograd.grad(loss(hidden[i], weight, labels[i], valid), weight)[0] for i in range(2)]
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-5, atol=1e-7)


def test_the_gradient_follows_what_comes_after_the_loss():
    hidden, weight, labels = inputs()
    loss = LossConfig(chunk_tokens=7).build()
    once = torch.autograd.grad(loss(hidden, weight, labels), (hidden, weight))
    thrice = torch.autograd.grad(3 * loss(hidden, weight, labels), (hidden, weight))
    for a, b in zip(once, thrice, strict=True):
        torch.testing.assert_close(3 * a, b, rtol=1e-6, atol=0)


def test_without_gradients_the_value_is_the_same_and_nothing_is_kept():
    hidden, weight, labels = inputs()
    loss = LossConfig(chunk_tokens=7).build()
    with torch.no_grad():
        value = loss(hidden, weight, labels)
    assert not value.requires_grad
    assert torch.equal(value, loss(hidden, weight, labels).detach())


def test_a_batch_without_labels_costs_nothing():
    hidden, weight, labels = inputs()
    loss = LossConfig(chunk_tokens=7).build()(hidden, weight, torch.full_like(labels, -100))
    assert loss.item() == 0 and (torch.autograd.grad(loss, hidden)[0] == 0).all()


def test_bf16_gradients_are_summed_over_slices_in_fp32():
    hidden, weight, labels = inputs(torch.bfloat16, ignored=False)
    # The same token 600 times: a bf16 sum of its gradients would stop growing after 256 of them.
    hidden, labels = (x.flatten(0, 1)[:1].repeat_interleave(600, 0).detach() for x in (hidden, labels[..., None]))
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = torch.autograd.grad(F.cross_entropy(exact[0] @ exact[1].T, labels.flatten()), exact)
    loss = LossConfig(chunk_tokens=1).build()(hidden.requires_grad_(), weight, labels.flatten())
    for found, right in zip(torch.autograd.grad(loss, (hidden, weight)), expected, strict=True):
        assert found.dtype == torch.bfloat16
        assert (found.double() - right).abs().max() <= 0.01 * right.abs().max()


class Largest(TorchDispatchMode):
    """The largest floating tensor that any op makes, by number of elements."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return out


@pytest.mark.parametrize("grad", [False, True])
def test_the_logits_of_the_whole_batch_never_exist(grad):
    hidden = torch.randn(512, 4, requires_grad=True)
    weight = torch.randn(100, 4, requires_grad=True)
    labels = torch.randint(0, 100, (512,))
    with torch.set_grad_enabled(grad), Largest() as largest:
        loss = LossConfig(chunk_tokens=32).build()(hidden, weight, labels)
        if grad:
            loss.backward()
    assert largest.numel == max(32 * 100, hidden.numel())


def test_a_tied_weight_gets_the_gradient_of_both_uses():
    model = build(small_qwen3())
    tokens, labels = batch()
    model(tokens, labels).loss.backward()
    found = model.embedding.weight.grad
    assert model.head.output.weight is model.embedding.weight
    again = build(small_qwen3())
    logits = again.predict(tokens)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    torch.testing.assert_close(found, again.embedding.weight.grad, rtol=1e-4, atol=1e-7)

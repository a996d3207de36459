"""Our own ops against torch's: values, gradients, what fake tensors promise, and what a compiler makes of them."""

from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.kernels.catalog import CUSTOM_OPS, find_decompositions, register_decompositions
from monograph.kernels.chunked_cross_entropy import (
    CHUNKED_CROSS_ENTROPY,
    chunked_cross_entropy,
    reference_chunked_cross_entropy,
)
from monograph.kernels.chunked_cross_entropy_on_gpu import cross_entropy_
from monograph.kernels.cross_entropy import reference_cross_entropy
from monograph.kernels.norm import ADD_NORM, NORM, NORM_BACKWARD, NORM_BACKWARD_RECOMPUTE, norm
from monograph.kernels.rope import ROPE, ROPE_PACKED, apply_rope, reference_rope
from monograph.kernels.swiglu import (
    SWIGLU,
    SWIGLU_BACKWARD,
    SWIGLU_BACKWARD_PACKED,
    SWIGLU_BACKWARD_PACKED_RECOMPUTE,
    SWIGLU_BACKWARD_RECOMPUTE,
    reference_swiglu_backward,
    swiglu,
)
from monograph.labels import IGNORED_LABEL

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
DTYPES = (torch.float32, torch.bfloat16)


def close(found, expected):
    """Within rounding: a kernel computes in fp32 what torch rounds op by op."""
    close_enough = {"rtol": 2e-2, "atol": 1e-2} if expected.dtype == torch.bfloat16 else {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(found, expected, **close_enough)


def make_gate(device, dtype, rows=7):
    """Two halves of one matmul, as when both projections are computed together: rows with gaps between them."""
    torch.manual_seed(0)
    both = torch.randn(3, rows, 3000, dtype=dtype, device=device)
    return both[..., :1500], both[..., 1500:], torch.randn(3, rows, 1500, dtype=dtype, device=device)


def make_heads(device, dtype):
    """Heads of which only a part is turned, and every sequence with angles of its own."""
    torch.manual_seed(0)
    heads = torch.randn(2, 5, 3, 24, dtype=dtype, device=device)[..., 4:]
    cos, sin = torch.randn(2, 2, 5, 1, 10, device=device).unbind()
    return heads, cos, sin


def make_norm(device, dtype, shape=(3, 700, 300)):
    """Rows that are parts of wider ones, more of them than one program takes; also a gradient and what comes past."""
    torch.manual_seed(0)
    x = torch.randn(*shape[:-1], 2 * shape[-1], dtype=dtype, device=device)[..., : shape[-1]]
    grad, other = torch.randn(2, *shape, dtype=dtype, device=device).unbind()
    return x, torch.randn(shape[-1], dtype=dtype, device=device), grad, other


def make_norm_backward():
    """What a norm's backward reads."""
    x, weight, grad, other = make_norm(CPU, torch.float32)
    return grad, x, weight, NORM(x, weight, 1e-5)[1], other


def make_loss(device, dtype, rows=11):
    """More columns than a kernel reads at a time; a label that is certain, some that do not count, an odd end."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, 40, device=device)
    weight = torch.randn(20_000, 40, device=device) / 4
    labels = torch.randint(0, 20_000, (rows,), device=device)
    hidden[1] = weight[labels[1]] * 3
    labels[2] = labels[7] = IGNORED_LABEL
    return hidden.to(dtype), weight.to(dtype), labels, torch.tensor(1 / 9, device=device)


def differentiate(function, *inputs, grad):
    """The result and the inputs' gradients."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    result = function(*leaves)
    return result.detach(), *torch.autograd.grad(result, leaves, grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_gate_does_what_torch_does(device, dtype):
    x, up, grad = make_gate(device, dtype)
    fused, plain = (differentiate(partial(swiglu, kernels=kernels), x, up, grad=grad) for kernels in ("fused", "plain"))
    for found, expected in zip(fused, plain, strict=True):
        assert found.is_contiguous()
        close(found, expected)
    for found, expected in zip(SWIGLU_BACKWARD(grad, x, up), reference_swiglu_backward(grad, x, up), strict=True):
        close(found, expected)
    assert swiglu(x[:, :0], up[:, :0], kernels="fused").shape == (3, 0, 1500), "an expert without rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_rotation_does_what_torch_does(device, interleaved, dtype):
    heads, cos, sin = make_heads(device, dtype)
    grad = torch.randn(heads.transpose(1, 2).shape, dtype=dtype, device=device).transpose(1, 2)
    for angles in ((cos, sin), (cos[:1], sin[:1])):
        fused, plain = (
            differentiate(
                partial(apply_rope, rotation=angles, interleaved=interleaved, kernels=kernels), heads, grad=grad
            )
            for kernels in ("fused", "plain")
        )
        for found, expected in zip(fused, plain, strict=True):
            close(found, expected)
        there = ROPE(heads, *angles, interleaved, False)
        close(there, reference_rope(heads, *angles, interleaved, False))
        assert there.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_rotations_beside_values_have_the_same_bits(device, interleaved, dtype):
    heads, cos, sin = make_heads(device, dtype)
    q, v = heads.transpose(1, 2).contiguous().transpose(1, 2), torch.randn(2, 5, 2, 7, dtype=dtype, device=device)
    k = heads[:, :, 1:2]
    for angles in ((cos, sin), (cos[:1], sin[:1])):
        found = ROPE_PACKED(q, k, v, *angles, interleaved, True)
        parts = (ROPE(q, *angles, interleaved, True), ROPE(k, *angles, interleaved, True), v)
        assert torch.equal(found, torch.cat([part.flatten(2) for part in parts], -1))
    assert ROPE_PACKED(q[:0], k[:0], v[:0], cos[:1], sin[:1], interleaved, True).shape == (0, 5, 3 * 20 + 20 + 14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_gate_that_is_computed_with_its_backward_has_the_same_bits(device, dtype):
    x, up, grad = make_gate(device, dtype)
    expected = *SWIGLU_BACKWARD(grad, x, up), SWIGLU(x, up)
    again = SWIGLU_BACKWARD_RECOMPUTE(grad, x, up)
    joined = SWIGLU_BACKWARD_PACKED(grad, x, up)
    both, last = SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad, x, up)
    for found in (again, (*joined.chunk(2, -1), last), (*both.chunk(2, -1), last)):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("shape", [(3, 700, 300), (2, 5, 4, 64), (5, 4096), (7, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_norm_does_what_torch_does(device, dtype, shape):
    x, weight, grad, _ = make_norm(device, dtype, shape)
    fused, plain = (
        differentiate(partial(norm, eps=1e-5, kernels=kernels), x, weight, grad=grad) for kernels in ("fused", "plain")
    )
    for found, expected in zip(fused[:2], plain[:2], strict=True):
        assert found.is_contiguous()
        close(found, expected)
    rows = x.numel() // x.shape[-1]
    error = (fused[2] - plain[2]).abs().max()
    assert error <= plain[2].abs().max() * (2e-2 if dtype == torch.bfloat16 else 1e-6) * max(1, rows / 1000) ** 0.5
    assert norm(x[:0], weight, 1e-5, kernels="fused").shape == x[:0].shape, "no rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_norm_with_its_sums_has_the_same_bits(device, dtype):
    x, weight, grad, other = make_norm(device, dtype)
    total, *rest = ADD_NORM(x, other, weight, 1e-5)
    assert torch.equal(total, x + other)
    out, rstd = NORM(total, weight, 1e-5)
    assert all(map(torch.equal, rest, (out, rstd)))
    of_x, of_weight = NORM_BACKWARD(grad, total, weight, rstd, None)
    for more, wanted in ((None, of_x), (other, of_x + other)):
        assert all(map(torch.equal, NORM_BACKWARD(grad, total, weight, rstd, more), (wanted, of_weight)))
        found = NORM_BACKWARD_RECOMPUTE(grad, total, weight, rstd, more)
        assert all(map(torch.equal, found, (wanted, of_weight, out)))


@pytest.mark.parametrize("chunk_tokens", [4, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_loss_does_what_torch_does(device, dtype, chunk_tokens):
    hidden, weight, labels, scale = make_loss(device, dtype)
    found = chunked_cross_entropy(hidden, weight, labels, scale, chunk_tokens, kernels="fused")
    exact = reference_chunked_cross_entropy(hidden.double(), weight.double(), labels, scale.double(), chunk_tokens)
    for one, other, dtype_wanted in zip(found, exact, (torch.float32, dtype, dtype), strict=True):
        assert one.dtype == dtype_wanted
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert error < (1e-2 if dtype == torch.bfloat16 else 2e-6)
    assert (found[1][labels == IGNORED_LABEL] == 0).all(), "tokens that do not count change nothing"
    rows = labels[1]
    assert found[2][rows].abs().max() > 0, "what is left of a probability close to one is not rounded away"
    empty = chunked_cross_entropy(hidden[:0], weight, labels[:0], scale, chunk_tokens, kernels="fused")
    assert [value.abs().sum().item() for value in empty] == [0.0, 0.0, 0.0]


@pytest.mark.gpu
def test_a_row_of_logits_does_not_depend_on_the_rows_before_it():
    """A program takes several rows where there are more than programs."""
    hidden, weight, labels, scale = make_loss(torch.device("cuda"), torch.bfloat16, rows=3000)
    _, all_rows, _ = chunked_cross_entropy(hidden, weight, labels, scale, 3000, kernels="fused")
    for first in (0, 1500, 2989):
        part = slice(first, first + 11)
        _, few, _ = chunked_cross_entropy(hidden[part], weight, labels[part], scale, 3000, kernels="fused")
        error = (all_rows[part].float() - few.float()).norm() / few.float().norm()
        assert error < 1e-3, "matmuls of another size may add in another order, and nothing else"


def compute_loss(logits, labels, scale):
    """Losses of rows and the gradients of their logits, by what the device has for it."""
    if not logits.is_cuda:
        return reference_cross_entropy(logits, labels, scale)
    losses, grad = torch.empty(len(labels), device=logits.device), logits.clone()
    cross_entropy_(grad, labels, losses, scale)
    return losses, grad


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_loss_of_logits_far_below_zero_is_that_of_torch(device):
    logits = torch.full((4, 20), -2e30)
    logits[1], logits[2, 7] = torch.linspace(-3.3e38, -1e38, 20), float("-inf")
    logits[3] = torch.finfo(torch.float32).min
    labels = torch.tensor([3, 19, 0, 5])
    found, grad = compute_loss(logits.to(device), labels.to(device), torch.tensor(0.25, device=device))
    torch.testing.assert_close(found.cpu(), torch.nn.functional.cross_entropy(logits, labels, reduction="none"))
    wanted = (logits.softmax(-1) - torch.nn.functional.one_hot(labels, 20)) * 0.25
    torch.testing.assert_close(grad.cpu(), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_rows_that_do_not_count_have_no_gradient_whatever_the_scale(device, scale):
    logits, labels = torch.randn(2, 20, device=device), torch.tensor([IGNORED_LABEL, 3], device=device)
    losses, grad = compute_loss(logits, labels, torch.tensor(scale, device=device))
    assert losses[0] == 0 and grad[0].eq(0).all()
    assert not grad[1].isfinite().any()


@pytest.mark.gpu
def test_a_label_that_is_no_token_makes_the_loss_no_number():
    hidden, weight, labels, scale = make_loss(torch.device("cuda"), torch.bfloat16)
    for wrong in (20_000, -1):
        labels[3] = wrong
        assert chunked_cross_entropy(hidden, weight, labels, scale, 4, kernels="fused")[0].isnan()


@pytest.mark.gpu
def test_kernels_give_the_same_bits_every_time():
    device = torch.device("cuda")
    loss = make_loss(device, torch.bfloat16)
    x, weight, grad, other = make_norm(device, torch.bfloat16)
    rstd = NORM(x, weight, 1e-5)[1]
    for function in (
        lambda: chunked_cross_entropy(*loss, 4, kernels="fused"),
        lambda: NORM_BACKWARD(grad, x, weight, rstd, other),
    ):
        first, again = function(), function()
        assert all(map(torch.equal, first, again))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (SWIGLU, make_gate(CPU, torch.float32)[:2]),
        (SWIGLU_BACKWARD, make_gate(CPU, torch.float32)),
        (ROPE, (*make_heads(CPU, torch.float32), True, False)),
        (ROPE_PACKED, (*make_heads(CPU, torch.float32)[:1] * 3, *make_heads(CPU, torch.float32)[1:], True, False)),
        (SWIGLU_BACKWARD_RECOMPUTE, make_gate(CPU, torch.float32)),
        (SWIGLU_BACKWARD_PACKED, make_gate(CPU, torch.float32)),
        (SWIGLU_BACKWARD_PACKED_RECOMPUTE, make_gate(CPU, torch.float32)),
        (NORM, (*make_norm(CPU, torch.float32)[:2], 1e-5)),
        (ADD_NORM, (*make_norm_backward()[1::3], torch.ones(300), 1e-5)),
        (NORM_BACKWARD, make_norm_backward()),
        (NORM_BACKWARD_RECOMPUTE, make_norm_backward()),
        (CHUNKED_CROSS_ENTROPY, (*make_loss(CPU, torch.float32), 4)),
    ],
)
def test_fake_tensors_promise_what_ops_return(op, inputs):
    torch.library.opcheck(op, inputs, test_utils=("test_schema", "test_faketensor"))


def test_the_catalog_has_every_op():
    ours = {own.name: str(op) for op, own in CUSTOM_OPS.items() if str(op).startswith("monograph.")}
    assert ours.keys() <= set(dir(torch.ops.monograph))
    assert set(ours.values()) == {f"monograph.{name}.default" for name in ours}
    assert len(ours) >= 22, "20 kernels of ours, and two ops that call torch's own"


def test_a_compiler_sees_plain_ops():
    register_decompositions()
    table = torch._inductor.decomposition.select_decomp_table()
    assert find_decompositions().keys() <= table.keys()
    x, up, grad = make_gate(CPU, torch.float32)
    heads, cos, sin = make_heads(CPU, torch.float32)

    norms = make_norm_backward()

    def both(x, up, grad, heads):
        gates = SWIGLU(x, up), *SWIGLU_BACKWARD_RECOMPUTE(grad, x, up), *SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad, x, up)
        return (
            *gates,
            ROPE(heads, cos, sin, False, True),
            *ADD_NORM(*norms[1::3], norms[2], 1e-5),
            *NORM_BACKWARD_RECOMPUTE(*norms),
        )

    traced = make_fx(both, decomposition_table=table)(x, up, grad, heads)
    assert not [node for node in traced.graph.nodes if "monograph" in str(node.target)]
    for found, expected in zip(traced(x, up, grad, heads), both(x, up, grad, heads), strict=True):
        torch.testing.assert_close(found, expected)

"""Our own ops against torch's: values, gradients, what fake tensors promise, and what a compiler makes of them."""

from functools import partial

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.kernels.cross_entropy import CROSS_ENTROPY, IGNORED, cross_entropy, plain_cross_entropy
from monograph.kernels.forms import PLAIN_FORMS, teach_compiler
from monograph.kernels.gate import GATE, GATE_BACKWARD, gate, plain_gate_backward
from monograph.kernels.rotation import ROTATE, rotate, turn

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
DTYPES = (torch.float32, torch.bfloat16)


def close(found, expected):
    """Within rounding: a kernel computes in fp32 what torch rounds op by op."""
    close_enough = {"rtol": 2e-2, "atol": 1e-2} if expected.dtype == torch.bfloat16 else {"rtol": 2e-6, "atol": 2e-6}
    torch.testing.assert_close(found, expected, **close_enough)


def make_gate(device, dtype, rows=7):
    """Two halves of one product, as when both projections are computed together: rows with gaps between them."""
    torch.manual_seed(0)
    both = torch.randn(3, rows, 3000, dtype=dtype, device=device)
    return both[..., :1500], both[..., 1500:], torch.randn(3, rows, 1500, dtype=dtype, device=device)


def make_heads(device, dtype):
    """Heads of which only a part is turned, and every sequence with angles of its own."""
    torch.manual_seed(0)
    heads = torch.randn(2, 5, 3, 24, dtype=dtype, device=device)[..., 4:]
    cos, sin = torch.randn(2, 2, 5, 1, 10, device=device).unbind()
    return heads, cos, sin


def make_logits(device, dtype):
    """More columns than a kernel reads at a time; a label that is certain, and one that does not count."""
    torch.manual_seed(0)
    logits = torch.randn(6, 20_000, device=device) * 3
    targets = torch.randint(0, 20_000, (6,), device=device)
    logits[1, targets[1]] = 22.0
    targets[2] = IGNORED
    return logits.to(dtype), targets


def differentiate(function, *inputs, grad):
    """The result and the inputs' gradients."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    result = function(*leaves)
    return result.detach(), *torch.autograd.grad(result, leaves, grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_gate_does_what_torch_does(device, dtype):
    x, up, grad = make_gate(device, dtype)
    fused, plain = (differentiate(partial(gate, kernels=kernels), x, up, grad=grad) for kernels in ("fused", "plain"))
    for found, expected in zip(fused, plain, strict=True):
        assert found.is_contiguous()
        close(found, expected)
    for found, expected in zip(GATE_BACKWARD(grad, x, up), plain_gate_backward(grad, x, up), strict=True):
        close(found, expected)
    assert gate(x[:, :0], up[:, :0], kernels="fused").shape == (3, 0, 1500), "an expert without rows"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_fused_rotation_does_what_torch_does(device, interleaved, dtype):
    heads, cos, sin = make_heads(device, dtype)
    grad = torch.randn(heads.transpose(1, 2).shape, dtype=dtype, device=device).transpose(1, 2)
    for angles in ((cos, sin), (cos[:1], sin[:1])):
        fused, plain = (
            differentiate(partial(rotate, rotation=angles, interleaved=interleaved, kernels=kernels), heads, grad=grad)
            for kernels in ("fused", "plain")
        )
        for found, expected in zip(fused, plain, strict=True):
            close(found, expected)
        there = ROTATE(heads, *angles, interleaved, False)
        close(there, turn(heads, *angles, interleaved, False))
        assert there.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_fused_cross_entropy_does_what_torch_does(device, dtype):
    logits, targets = make_logits(device, dtype)
    wide = torch.cat([logits, logits], dim=-1)[:, : logits.shape[1]]
    for given in (logits, wide):
        losses, grad = cross_entropy(given, targets, kernels="fused")
        expected_losses, expected_grad = plain_cross_entropy(logits, targets)
        assert losses.dtype == torch.float32
        assert grad.dtype == dtype
        counts = targets != IGNORED
        torch.testing.assert_close(losses[counts], expected_losses[counts], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(grad[counts], expected_grad[counts])
    certain = grad[1, targets[1]].item()
    assert -1e-3 < certain < 0, "what is left of a probability close to one is not rounded away"


@pytest.mark.gpu
def test_kernels_give_the_same_bits_every_time():
    logits, targets = make_logits(torch.device("cuda"), torch.bfloat16)
    first, again = (cross_entropy(logits, targets, kernels="fused") for _ in range(2))
    assert all(map(torch.equal, first, again))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (GATE, make_gate(CPU, torch.float32)[:2]),
        (GATE_BACKWARD, make_gate(CPU, torch.float32)),
        (ROTATE, (*make_heads(CPU, torch.float32), True, False)),
        (CROSS_ENTROPY, make_logits(CPU, torch.float32)),
    ],
)
def test_fake_tensors_promise_what_ops_return(op, inputs):
    torch.library.opcheck(op, inputs, test_utils=("test_schema", "test_faketensor"))


def test_a_compiler_sees_plain_ops():
    teach_compiler()
    table = torch._inductor.decomposition.select_decomp_table()
    assert PLAIN_FORMS.keys() <= table.keys()
    x, up, grad = make_gate(CPU, torch.float32)
    heads, cos, sin = make_heads(CPU, torch.float32)

    def both(x, up, grad, heads):
        return GATE(x, up), GATE_BACKWARD(grad, x, up), ROTATE(heads, cos, sin, False, True)

    traced = make_fx(both, decomposition_table=table)(x, up, grad, heads)
    assert not [node for node in traced.graph.nodes if "monograph" in str(node.target)]
    for found, expected in zip(traced(x, up, grad, heads), both(x, up, grad, heads), strict=True):
        torch.testing.assert_close(found, expected)

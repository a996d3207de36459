"""The experts: both backends compute the same, and each the same bits every time."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.errors import ConfigError
from monograph.kernels.grouped_matmul import GROUPED_MATMUL, GROUPED_MATMUL_WEIGHT_GRAD, grouped_matmul
from monograph.models.config import ExpertsConfig, ResidualSpec
from monograph.models.experts import Experts
from tests.kit.small import build, small_deepseek_v3

RESIDUAL = ResidualSpec(dim=32, norm_eps=1e-6, init_std=0.3, out_std=0.3)
SIZES = [5, 0, 17, 10]


def make(backend: str, dtype: torch.dtype, hidden_dim: int = 16) -> Experts:
    torch.manual_seed(0)
    experts = ExpertsConfig(backend=backend).build(n_experts=4, hidden_dim=hidden_dim, residual=RESIDUAL)
    for parameter in experts.parameters():
        parameter.data.normal_(std=0.3)
    return experts.to(dtype)


def run(backend: str, dtype: torch.dtype, hidden_dim: int = 16) -> dict[str, torch.Tensor]:
    """The answers, and all gradients of a loss over them."""
    experts = make(backend, dtype, hidden_dim)
    rows = torch.randn(sum(SIZES), 32, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    out = experts(rows, torch.tensor(SIZES).cumsum(0).to(torch.int32))
    out.float().square().sum().backward()
    return {"out": out, "rows": rows.grad, **{name: p.grad for name, p in experts.named_parameters()}}


def test_each_expert_answers_its_own_rows():
    experts = make("loop", torch.float32)
    rows = torch.randn(sum(SIZES), 32, generator=torch.Generator().manual_seed(1))
    found = experts(rows, torch.tensor(SIZES).cumsum(0).to(torch.int32))
    expected = [
        (F.silu(part @ experts.w1[e].T) * (part @ experts.w3[e].T)) @ experts.w2[e].T
        for e, part in enumerate(rows.split(SIZES))
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-5, atol=1e-6)


def test_grouped_and_loop_agree_in_bf16():
    grouped, loop, exact = run("grouped_mm", torch.bfloat16), run("loop", torch.bfloat16), run("loop", torch.float32)
    for name in exact:
        scale = exact[name].abs().max()
        assert (grouped[name].float() - loop[name].float()).abs().max() <= 0.01 * scale, name
        assert (grouped[name].float() - exact[name]).abs().max() <= 0.03 * scale, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_op_for_all_experts_computes_what_one_expert_after_the_other_does(dtype):
    found, expected = run("grouped_loop", dtype), run("loop", dtype)
    for name in expected:
        assert (found[name] - expected[name]).abs().max() <= 1e-5 * expected[name].abs().max()
        assert found[name].stride() == expected[name].stride()


def test_the_op_and_its_gradients_hold_their_promises():
    rows = torch.randn(sum(SIZES), 4, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(len(SIZES), 4, 3, dtype=torch.float64, requires_grad=True)
    ends = torch.tensor(SIZES).cumsum(0)
    assert torch.autograd.gradcheck(grouped_matmul, (rows, weights, ends))
    torch.library.opcheck(GROUPED_MATMUL, (rows.detach(), weights.detach(), ends))
    grad = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    torch.library.opcheck(GROUPED_MATMUL_WEIGHT_GRAD, (grad, rows.detach(), ends))


@pytest.mark.parametrize("ends", [[2, 1, 5], [2, 3, 4], [2, 3, 9], [-1, 3, 5]])
def test_rows_that_do_not_end_in_order_at_the_last_one_are_refused(ends):
    with pytest.raises(ValueError, match="rows end at"):
        grouped_matmul(torch.zeros(5, 4), torch.zeros(3, 4, 2), torch.tensor(ends))


@pytest.mark.parametrize(
    "backend, dtype", [("grouped_mm", torch.bfloat16), ("grouped_loop", torch.float32), ("loop", torch.float32)]
)
def test_each_backend_gives_the_same_bits_every_time(backend, dtype):
    first, second = run(backend, dtype), run(backend, dtype)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_expert_without_tokens_gets_a_zero_gradient():
    for backend in ("grouped_mm", "grouped_loop", "loop"):
        found = run(backend, torch.bfloat16)
        for name in ("w1", "w2", "w3"):
            assert (found[name][1] == 0).all() and (found[name][0] != 0).any()


def test_asking_for_the_grouped_kernel_in_fp32_is_an_error_that_says_what_to_do():
    with pytest.raises(ConfigError, match="compute_dtype bfloat16"):
        run("grouped_mm", torch.float32)


def test_rows_that_the_grouped_kernel_cannot_address_are_refused_or_left_to_the_loop():
    with pytest.raises(ConfigError, match="12 x 32") as caught:
        run("grouped_mm", torch.bfloat16, hidden_dim=12)
    assert "multiples of 8" in caught.value.why
    found, expected = (run(backend, torch.bfloat16, hidden_dim=12) for backend in ("auto", "grouped_loop"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class Calls(TorchDispatchMode):
    """Which ops ran."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_auto_takes_the_grouped_kernel_for_bf16_and_our_op_otherwise():
    for dtype, expected in ((torch.bfloat16, True), (torch.float32, False)):
        with Calls() as calls:
            run("auto", dtype)
        assert any("grouped_mm" in name for name in calls.names) == expected
        assert any("monograph.grouped_matmul" in name for name in calls.names) != expected


@pytest.mark.parametrize("backend, dtype, per_layer", [("grouped_mm", torch.bfloat16, 0), ("loop", torch.float32, 1)])
def test_counts_reach_the_host_at_most_once_per_layer(backend, dtype, per_layer, monkeypatch):
    config = small_deepseek_v3()
    config.moe.experts.backend = backend
    model = build(config, dtype=dtype)
    copies = []
    original = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: copies.append(self.shape) or original(self))
    with Calls() as calls:
        model(torch.zeros(1, 8, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64)).loss.backward()
    assert len(copies) == per_layer * 2
    assert not any("_local_scalar_dense" in name or "nonzero" in name for name in calls.names)

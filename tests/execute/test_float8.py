"""compile.numerics float8: the bits of an eager step that quantizes its linears the same way, wherever it runs."""

import pytest
import torch
from torch import Tensor

from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_MATMUL
from monograph.kernels.float8_grouped import FLOAT8_GROUPED_MATMUL
from monograph.models import experts
from monograph.models.linear import Linear
from tests.execute.updates import differences, make_updates, one_rank, small

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROUTINGS = ((), (0,), (2, 3))
WIDE = {"model.dim": 64, "training.seq_len": 64, "parallelism.reshard_after_forward": False}
LATENT = {"model.attention.q_lora_rank": 32, "model.attention.kv_lora_rank": 32}


class EagerFloat8Linear(torch.autograd.Function):
    """A linear whose three matmuls read float8 operands: what the pass is compared with."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, recipe: str) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        by_row = recipe != "tensorwise"
        return multiply(FLOAT8_CAST(x, E4M3, by_row, False), FLOAT8_CAST(weight, E4M3, by_row, False))

    @staticmethod
    def backward(ctx, grad: Tensor):
        x, weight = ctx.saved_tensors
        by_row, dtype = ctx.recipe != "tensorwise", E5M2 if ctx.recipe == "tensorwise" else E4M3
        of_x = multiply(FLOAT8_CAST(grad, dtype, by_row, False), FLOAT8_CAST(weight, E4M3, by_row, True))
        if ctx.recipe == "rowwise_hp_dw":
            return of_x, grad.t() @ x, None
        return of_x, multiply(FLOAT8_CAST(grad, dtype, by_row, True), FLOAT8_CAST(x, E4M3, by_row, True)), None


class EagerFloat8Experts(torch.autograd.Function):
    """Experts' matmul with float8 operands, and its weight gradient in bfloat16."""

    @staticmethod
    def forward(ctx, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, ends)
        (left, left_scale), (right, right_scale) = (
            FLOAT8_CAST(rows, E4M3, True, False),
            FLOAT8_CAST(weights, E4M3, True, True),
        )
        return FLOAT8_GROUPED_MATMUL(left, right, left_scale, right_scale, ends)

    @staticmethod
    def backward(ctx, grad: Tensor):
        rows, weights, ends = ctx.saved_tensors
        (left, left_scale), (right, right_scale) = (
            FLOAT8_CAST(grad, E4M3, True, False),
            FLOAT8_CAST(weights, E4M3, True, False),
        )
        of_rows = FLOAT8_GROUPED_MATMUL(left, right, left_scale, right_scale, ends)
        # Stored weights are [experts, out, in]: their gradient is computed in that layout.
        of_stored = torch._grouped_mm(grad.t(), rows, offs=ends)
        return of_rows, of_stored.transpose(1, 2), None


def multiply(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
    return FLOAT8_MATMUL(left[0], right[0], left[1], right[1], True)


def quantize_eager(monkeypatch, recipe: str) -> None:
    """Let linears and experts of an eager step quantize their matmuls; the router, in fp32, does not, and neither
    does what kernels for GPUs could not multiply."""
    plain = Linear.forward

    def forward(self: Linear, input: Tensor) -> Tensor:
        if input.dtype is not torch.bfloat16 or any(size % 16 for size in self.weight.shape):
            return plain(self, input)
        rows = EagerFloat8Linear.apply(input.flatten(0, -2), self.weight, recipe)
        return rows if input.dim() == 2 else rows.unflatten(0, input.shape[:-1])

    monkeypatch.setattr(Linear, "forward", forward)
    monkeypatch.setattr(experts, "grouped_mm", EagerFloat8Experts.apply)


def plan(model, folder, changes):
    latent = LATENT if model == "deepseek_v3" else {}
    return small(model, folder, {**WIDE, **latent, **changes}, experts="grouped")


@pytest.mark.parametrize(
    ("model", "recipe"),
    [
        ("llama3", "rowwise"),
        pytest.param("llama3", "tensorwise", marks=pytest.mark.long),
        pytest.param("llama3", "rowwise_hp_dw", marks=pytest.mark.long),
        ("deepseek_v3", "rowwise"),
    ],
)
def test_quantized_steps_have_the_bits_of_eager_quantized_linears(model, recipe, tmp_path, monkeypatch):
    graph = {"compile.mode": "graph", "passes.on": ("quantize_matmuls",), "passes.quantize_matmuls.recipe": recipe}
    config = plan(model, tmp_path, {**graph})
    with one_rank(config) as groups:
        found = make_updates(config, groups, routings=ROUTINGS)
        quantize_eager(monkeypatch, recipe)
        eager = make_updates(plan(model, tmp_path, {"compile.mode": "eager"}), groups, routings=ROUTINGS)
    assert differences(found, eager) == []

"""An eager step in float8, and updates of both kinds of steps side by side. A file of its own: ranks import it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from monograph.config.leaves import replace_leaf
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_MATMUL
from monograph.kernels.float8_grouped import FLOAT8_GROUPED_MATMUL
from monograph.models import experts
from monograph.models.linear import Linear
from monograph.parallel.groups import joined_groups
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.execute.artifacts import nothing_made
from tests.execute.updates import CPU, differences, make_updates, small

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROUTINGS = ((), (0,), (2, 3))
WIDE = {"model.dim": 64, "training.seq_len": 64, "parallelism.reshard_after_forward": False}
LATENT = {"model.attention.q_lora_rank": 32, "model.attention.kv_lora_rank": 32}
DEGREES = {
    "shard": "data_parallel_shard_degree",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
    "cp": "context_parallel_degree",
    "pp": "pipeline_parallel_degree",
}


def plan(model: str, folder: Path, changes: dict, **degrees: int) -> TrainerConfig:
    """A tiny run in bfloat16 whose matmuls are wide enough for float8, on a mesh of these degrees."""
    latent = LATENT if model == "deepseek_v3" else {}
    fields = {f"parallelism.{DEGREES[name]}": degree for name, degree in degrees.items()}
    return small(model, folder, {**WIDE, **latent, **fields, **changes}, experts="grouped")


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


@contextmanager
def quantized_linears(recipe: str) -> Iterator[None]:
    """Inside, linears and experts of an eager step quantize their matmuls; the router, in fp32, does not, and neither
    does what kernels for GPUs could not multiply."""
    plain = Linear.forward

    def forward(self: Linear, input: Tensor) -> Tensor:
        if input.dtype is not torch.bfloat16 or any(size % 16 for size in self.weight.shape):
            return plain(self, input)
        rows = EagerFloat8Linear.apply(input.flatten(0, -2), self.weight, recipe)
        return rows if input.dim() == 2 else rows.unflatten(0, input.shape[:-1])

    with patch.object(Linear, "forward", forward), patch.object(experts, "grouped_mm", EagerFloat8Experts.apply):
        yield


def compare_with_eager(captured: TrainerConfig, eager: TrainerConfig) -> list[str]:
    """As one of the ranks: what differs between updates of a captured step in float8 and of an eager one."""
    with joined_groups(plan_run_mesh(captured, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        found = make_updates(captured, groups, routings=ROUTINGS)
        with quantized_linears(captured.passes.quantize_matmuls.recipe):
            wanted = make_updates(eager, groups, routings=ROUTINGS)
    return differences(found, wanted)


def compare_with_artifact(captured: TrainerConfig, artifact: str) -> list[str]:
    """As one of the ranks: what differs between updates of a captured step and of the same step from an artifact."""
    loaded = replace_leaf(captured, "compile.artifact", artifact)
    with joined_groups(plan_run_mesh(captured, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted = make_updates(captured, groups, routings=ROUTINGS)
        with nothing_made():
            found = make_updates(loaded, groups, routings=ROUTINGS)
    return differences(found, wanted)

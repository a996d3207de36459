"""The routed experts: many small gated feed-forward layers, whose rows arrive sorted by expert."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.compat.ops import fits_grouped_mm, grouped_mm, has_grouped_mm
from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.kernels.grouped_matmul import grouped_matmul
from monograph.kernels.swiglu import swiglu
from monograph.models.config import ExpertsConfig, ResidualSpec
from monograph.models.init import InitSpec, Normal
from monograph.models.parallel_plan import ParallelPlan, shard_experts


class RoutedExperts(nn.Module, Configurable):
    """What every kind of routed experts shares: how they are computed.

    Three ways to compute the same: torch's grouped kernel, which leaves the counts on the device; an op of ours that
    loops over the experts, for the dtypes and devices that kernel does not serve; and that loop op by op, the simplest.
    """

    Config: ClassVar[Any] = ExpertsConfig

    def __init__(
        self, config: ExpertsConfig, *, n_experts: int, hidden_dim: int, residual: ResidualSpec, used_share: float = 1.0
    ) -> None:
        super().__init__()
        self.config, self.residual = config, residual
        self.used_share = used_share
        """The share of experts that a token visits."""

    @property
    def widths(self) -> tuple[int, int]:
        """Hidden channels of one expert, which may be a shard's, and channels of a row."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define widths")

    def compute_grouped(self, rows: Tensor, ends: Tensor, matmul: Callable[..., Tensor]) -> Tensor:
        """All experts in a few matmuls, whose shapes do not depend on the routing."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define compute_grouped(rows, ends, matmul)")

    def stacks(self) -> tuple[Tensor, ...]:
        """The weights, each with the experts as its first dim: what `compute_expert` gets of one expert."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define stacks()")

    def compute_expert(self, rows: Tensor, *weights: Tensor) -> Tensor:
        """One expert's answer to its rows."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define compute_expert(rows, *weights)")

    def forward(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Each expert's answer to its rows; `ends` (int32, on the device) says where each expert's rows end."""
        if self.config.backend == "loop":
            return self.compute_in_loop(rows, ends)
        is_grouped = self.is_grouped(rows.dtype, rows.device)
        return self.compute_grouped(rows, ends, grouped_mm if is_grouped else grouped_matmul)

    def is_grouped(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Which backend serves such rows; an explicit wish that cannot be met is an error."""
        backend = self.config.backend
        if backend == "grouped_mm" and dtype != torch.bfloat16:
            raise ConfigError(
                f"experts.backend is grouped_mm but the experts compute in {str(dtype).removeprefix('torch.')}",
                why="the grouped kernel takes bfloat16 only",
                do="--training.compute_dtype bfloat16, or experts.backend auto",
            )
        hidden_dim, dim = self.widths
        is_fit = fits_grouped_mm(dtype, hidden_dim, dim)
        if backend == "grouped_mm" and not is_fit:
            raise ConfigError(
                f"experts.backend is grouped_mm, and the experts of one rank are {hidden_dim} x {dim}",
                why="the grouped kernel takes rows of a multiple of 16 bytes: both widths must be multiples of 8",
                do="experts.backend auto or grouped_loop; or other model.moe.hidden_dim, model.dim, or "
                "parallelism.expert_tensor_parallel_degree",
            )
        return backend == "grouped_mm" or (backend == "auto" and is_fit and has_grouped_mm(device, dtype))

    def compute_in_loop(self, rows: Tensor, ends: Tensor) -> Tensor:
        """One expert after another; one copy of the counts to the host decides who gets which rows."""
        total = rows.shape[0]
        sizes = ends.diff(prepend=ends.new_zeros(1)).tolist()
        for size in sizes:
            torch._check(size >= 0)
            torch._check(size <= total)
        torch._check(sum(sizes) == total)
        # unbind, not w1[i]: its backward stacks the gradients once, where indexing would add up full-sized ones.
        weights = zip(*(stack.unbind() for stack in self.stacks()), strict=True)
        parts = zip(torch.split(rows, sizes), weights, strict=True)
        return torch.cat([self.compute_expert(part, *own) for part, own in parts])


class Experts(RoutedExperts):
    """w2(silu(w1 x) * w3 x) for every expert; the weights of all experts are stacked, [experts, out, in]."""

    def __init__(
        self, config: ExpertsConfig, *, n_experts: int, hidden_dim: int, residual: ResidualSpec, used_share: float = 1.0
    ) -> None:
        sizes: dict[str, Any] = {"n_experts": n_experts, "hidden_dim": hidden_dim, "used_share": used_share}
        super().__init__(config, residual=residual, **sizes)
        self.w1 = nn.Parameter(torch.empty(n_experts, hidden_dim, residual.dim))
        self.w2 = nn.Parameter(torch.empty(n_experts, residual.dim, hidden_dim))
        self.w3 = nn.Parameter(torch.empty(n_experts, hidden_dim, residual.dim))

    @property
    def widths(self) -> tuple[int, int]:
        hidden_dim, dim = self.w1.shape[1:]
        return hidden_dim, dim

    def plan_parallel(self) -> ParallelPlan:
        """Experts over ranks, and their hidden channels over further ones."""
        return ParallelPlan(parameters=(*(shard_experts(name, 1) for name in ("w1", "w3")), shard_experts("w2", 2)))

    def plan_init(self) -> dict[str, InitSpec]:
        """How the weights start."""
        read, write = Normal(self.residual.init_std), Normal(self.residual.out_std)
        return {"w1": read, "w2": write, "w3": read}

    def compute_grouped(self, rows: Tensor, ends: Tensor, matmul: Callable[..., Tensor]) -> Tensor:
        x = matmul(rows, self.w1.transpose(1, 2), ends)
        up = matmul(rows, self.w3.transpose(1, 2), ends)
        return matmul(swiglu(x, up, kernels=self.residual.kernels), self.w2.transpose(1, 2), ends)

    def stacks(self) -> tuple[Tensor, ...]:
        return self.w1, self.w2, self.w3

    def compute_expert(self, rows: Tensor, *weights: Tensor) -> Tensor:
        w1, w2, w3 = weights
        return F.linear(swiglu(F.linear(rows, w1), F.linear(rows, w3), kernels=self.residual.kernels), w2)

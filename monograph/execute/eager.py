"""The training step, run op by op as PyTorch sees it: the reference every other way of running it is measured against."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from monograph.models.balance import update_expert_bias
from monograph.models.decoder import Decoder, call_module


class CastCall:
    """Run one unit of the model with its parameters cast to the compute dtype.

    The cast happens where the unit starts, so at most one unit's low-precision copy is alive besides what backward
    saves, and its backward returns gradients in the stored dtype. Sharded training gathers at the same seam.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        cast = {
            name: value.to(self.dtype)
            for name, value in unit.named_parameters(remove_duplicate=False)
            if value.is_floating_point() and value.dtype != self.dtype
        }
        return torch.func.functional_call(unit, cast, args) if cast else unit(*args)


class EagerStep:
    """Forward, loss and backward on one device. Gradients add up in each parameter's `.grad` until cleared."""

    def __init__(self, model: Decoder, *, compute_dtype: torch.dtype, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.data_part = (0, 1)
        self.parameters: Mapping[str, Tensor] = dict(model.named_parameters())
        stored = {value.dtype for value in self.parameters.values()}
        self.call = call_module if stored == {compute_dtype} else CastCall(compute_dtype)

    def __call__(self, batch: Mapping[str, Tensor], valid_tokens: Tensor) -> Tensor:
        """Add this micro-batch's gradients and return its share of the loss, detached."""
        output = self.model(**self._inputs(batch), valid_tokens=valid_tokens, call=self.call)
        if output.loads is not None:
            self.model.expert_load.add_(output.loads)
        output.value.backward()
        return output.value.detach()

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor], valid_tokens: Tensor) -> Tensor:
        """This micro-batch's share of the loss; nothing is counted and nothing is kept."""
        self.model.eval()
        try:
            return self.model(**self._inputs(batch), valid_tokens=valid_tokens, call=self.call).value
        finally:
            self.model.train()

    def _inputs(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this model reads of a batch: with a causal mask a sequence is one text, whatever was packed into it."""
        names = ("tokens", "labels") if self.model.config.mask == "causal" else tuple(batch)
        return {name: batch[name] for name in names}

    def total_valid(self, count: int) -> Tensor:
        """The number of valid tokens in the whole update, over all devices."""
        return torch.tensor(float(count), device=self.device)

    def total_loss(self, share: Tensor) -> Tensor:
        """The loss of the whole update, over all devices."""
        return share

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, every element counted once."""
        return torch.nn.utils.get_total_norm([p.grad for p in self.parameters.values() if p.grad is not None])

    @torch.no_grad()
    def balance(self) -> Tensor | None:
        """Before the update: move the expert biases towards equal load; return the load since the last call."""
        load = getattr(self.model, "expert_load", None)
        if load is None:
            return None
        seen = load.clone()
        update_expert_bias(self.model, self.model.config.find_bias_update_rate())
        return seen

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of the model: parameters and persistent buffers, tied names once."""
        kept = dict(self.model.state_dict())
        tied = set(kept) - set(self.parameters) - {name for name, _ in self.model.named_buffers()}
        return {name: value.detach() for name, value in kept.items() if name not in tied}

    def laid_out_like(self, name: str, value: Tensor) -> Tensor:
        """On one device every tensor is whole already."""
        return value

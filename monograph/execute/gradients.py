"""Where gradients go: added up in place, in buffers that stay while an update is being gathered."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Gradients:
    """Adds gradients to the shards' `.grad`.

    The first of an update becomes the buffer the others are added to, as autograd does it: no second copy of all
    gradients ever exists. With fixed addresses, which a CUDA graph needs, buffers are made once and filled again.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, is_fixed: bool = False) -> None:
        self.parameters = parameters
        self.fixed: dict[str, Tensor] = {}
        if is_fixed:
            self.fixed = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}

    def begin(self) -> None:
        """Before a micro-batch: with fixed addresses, an update that starts afresh starts from zero."""
        for name, buffer in self.fixed.items():
            if self.parameters[name].grad is None:
                buffer.zero_()
                self.parameters[name].grad = buffer

    def add(self, name: str, gradient: Tensor) -> None:
        """Add one micro-batch's gradient of a parameter."""
        parameter = self.parameters[name]
        if parameter.grad is not None:
            parameter.grad.add_(gradient)
        else:
            parameter.grad = own(gradient.to(parameter.dtype), parameter)


def own(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in memory of its own, laid out like its parameter; the rest of a bucket must not stay with it."""
    is_whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    if is_whole and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)

"""Where gradients go: added up in place, in buffers that stay while an update is being gathered."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Gradients:
    """Adds gradients to the shards' `.grad`.

    The first of an update becomes the buffer the others are added to, as autograd does it: no second copy of all
    gradients ever exists. Under a CUDA graph that buffer lies in the recording's own memory, where every replay of an
    update's first micro-batch writes it anew.

    With `keeps_dtype` a gradient may be narrower than its parameter (pass narrow_gradients); it becomes as wide as that
    before another one is added to it.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, keeps_dtype: bool = False) -> None:
        self.parameters, self.keeps_dtype = parameters, keeps_dtype
        for parameter in parameters.values() if keeps_dtype else ():
            parameter.grad_dtype = None  # any will do

    @property
    def is_empty(self) -> bool:
        """Whether the next micro-batch is the first of an update."""
        return all(parameter.grad is None for parameter in self.parameters.values())

    @property
    def is_narrow(self) -> bool:
        """Whether any gradient must become wider before another one is added."""
        return any(value.grad is not None and value.grad.dtype is not value.dtype for value in self.parameters.values())

    def add(self, name: str, gradient: Tensor) -> None:
        """Add one micro-batch's gradient of a parameter."""
        parameter = self.parameters[name]
        if parameter.grad is None and self.keeps_dtype and gradient.stride() == parameter.stride():
            parameter.grad = gradient  # may be a view of a bucket, which holds gradients only
        elif parameter.grad is None:
            parameter.grad = own(gradient if self.keeps_dtype else gradient.to(parameter.dtype), parameter)
        elif parameter.grad.dtype is parameter.dtype:
            parameter.grad.add_(gradient)
        else:
            parameter.grad = parameter.grad.to(parameter.dtype).add_(gradient)

    def find_address(self) -> int:
        """Where the first of the gradients lies; 0 before there is any."""
        return next((value.grad.data_ptr() for value in self.parameters.values() if value.grad is not None), 0)

    def taken(self) -> dict[str, Tensor]:
        """The buffers as they are now."""
        return {name: value.grad for name, value in self.parameters.items() if value.grad is not None}

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Use these buffers again: something else than `add` has filled them."""
        for name, buffer in buffers.items():
            self.parameters[name].grad = buffer


def own(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in memory of its own, laid out like its parameter; the rest of a bucket must not stay with it."""
    is_whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    if is_whole and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)

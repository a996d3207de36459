"""Where gradients go: added up in place, in buffers that stay while an update is being gathered."""

from collections.abc import Mapping

import torch
from torch import Tensor


class Gradients:
    """Adds gradients to the shards' `.grad`.

    The first of an update becomes the buffer the others are added to, as autograd does it: no second copy of all
    gradients ever exists. Under a CUDA graph that buffer lies in the recording's own memory, where every replay of an
    update's first micro-batch writes it anew.

    A lone gradient has the dtype of its parameter, or with `keeps_dtype` (pass narrow_gradients) may be narrower.
    Several are added in `reduce_dtype`, or in the parameter's where that is wider: in bf16 the sum of a hundred would
    lose the small ones.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        *,
        reduce_dtype: torch.dtype = torch.float32,
        keeps_dtype: bool = False,
    ) -> None:
        self.parameters, self.reduce_dtype, self.keeps_dtype = parameters, reduce_dtype, keeps_dtype
        for parameter in parameters.values():
            allow_any_gradient(parameter, find_sum_dtype(parameter, reduce_dtype), keeps_dtype=keeps_dtype)

    @property
    def is_empty(self) -> bool:
        """Whether the next micro-batch is the first of an update."""
        return all(parameter.grad is None for parameter in self.parameters.values())

    @property
    def is_narrow(self) -> bool:
        """Whether any gradient must become wider before another one is added."""
        return any(
            value.grad is not None and value.grad.dtype is not find_sum_dtype(value, self.reduce_dtype)
            for value in self.parameters.values()
        )

    def add(self, name: str, gradient: Tensor) -> None:
        """Add one micro-batch's gradient of a parameter."""
        parameter = self.parameters[name]
        if not self.keeps_dtype:
            gradient = gradient.to(parameter.dtype)
        if parameter.grad is not None:
            parameter.grad = add_to_sum(parameter.grad, gradient, find_sum_dtype(parameter, self.reduce_dtype))
        elif self.keeps_dtype and gradient.stride() == parameter.stride():
            parameter.grad = gradient  # may be a view of a bucket, which holds gradients only
        else:
            parameter.grad = own(gradient, parameter)

    def find_address(self) -> int:
        """Where the first of the gradients lies; 0 before there is any."""
        return next((value.grad.data_ptr() for value in self.parameters.values() if value.grad is not None), 0)

    def count_bytes(self) -> int:
        """Bytes of the gradients that there are."""
        return sum(gradient.nbytes for gradient in self.taken().values())

    def taken(self) -> dict[str, Tensor]:
        """The buffers as they are now."""
        return {name: value.grad for name, value in self.parameters.items() if value.grad is not None}

    def restore(self, buffers: Mapping[str, Tensor]) -> None:
        """Use these buffers again: something else than `add` has filled them."""
        for name, buffer in buffers.items():
            self.parameters[name].grad = buffer


def find_sum_dtype(parameter: Tensor, reduce_dtype: torch.dtype) -> torch.dtype:
    """In which several gradients of a parameter are added up."""
    return torch.promote_types(parameter.dtype, reduce_dtype)


def allow_any_gradient(parameter: Tensor, dtype: torch.dtype, *, keeps_dtype: bool = False) -> None:
    """Let `.grad` be of another dtype than the parameter, where it will be."""
    if keeps_dtype or dtype is not parameter.dtype:
        parameter.grad_dtype = None  # any will do


def add_to_sum(total: Tensor, gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """A sum in `dtype` and one more gradient; in place, unless the sum was a lone gradient of another dtype."""
    return (total if total.dtype is dtype else total.to(dtype)).add_(gradient)


def own(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient in memory of its own, laid out like its parameter; the rest of a bucket must not stay with it."""
    is_whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    if is_whole and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient)

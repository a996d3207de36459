"""The most memory a piece of code holds at once, counted from what its ops make."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monograph.compat.ops import REDUCE_SCATTER, WAIT_TENSOR


class PeakBytes(TorchDispatchMode):
    """Bytes of all tensors that ops have made and nobody has dropped yet; tensors `known` before do not count."""

    def __init__(self, known=()) -> None:
        super().__init__()
        self.live, self.peak, self.seen = 0, 0, {each.untyped_storage()._cdata for each in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor):
                self._add(each.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.live += size
            weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.live -= size


class PeakOnRanks(PeakBytes):
    """The same on gloo ranks: what a reduce_scatter sends counts until it has been waited for.

    NCCL reads it until then. gloo reads a copy of its own instead, made where no dispatch mode sees it, and lets go of
    the tensor: the bytes are the same.
    """

    def __init__(self, known=()) -> None:
        super().__init__(known)
        self.sent: dict[Any, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is REDUCE_SCATTER:
            self.sent[result.untyped_storage()._cdata] = args[0]
        elif func is WAIT_TENSOR:
            self.sent.pop(args[0].untyped_storage()._cdata, None)
        return result

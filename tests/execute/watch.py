"""Looking into a step: which ops run, what stays in memory for backward, and what a compiler is given."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

PRODUCTS = ("mm", "bmm", "addmm", "_grouped_mm")


class CountOps(TorchDispatchMode):
    """Counts the ops that run inside, by name without overload."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))

    def matmuls(self) -> int:
        """Matmuls of any kind."""
        return sum(self.counts[name] for name in PRODUCTS)


class LiveBytes(TorchDispatchMode):
    """Knows every storage made inside; those still alive later were kept for something."""

    def __init__(self) -> None:
        super().__init__()
        self._born: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor):
                storage = value.untyped_storage()
                self._born[StorageWeakRef(storage)] = storage.nbytes()
        return result

    def count(self) -> int:
        """Bytes that are still held by someone."""
        return sum(size for storage, size in self._born.items() if not storage.expired())


def find_saved_bytes(value: Tensor) -> int:
    """Bytes that the compiled functions behind a value keep for backward; shared storage counts once."""
    sizes: dict[int, int] = {}
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [next_node for next_node, _ in node.next_functions]
        if node.name() == "CompiledFunctionBackward":
            kept = [*node.saved_tensors, *getattr(node, "_tensors_no_vc_check", ())]
            sizes.update((each.untyped_storage().data_ptr(), each.untyped_storage().nbytes()) for each in kept)
    return sum(sizes.values())


@contextmanager
def recorded_graphs() -> Iterator[list[torch.fx.GraphModule]]:
    """Every forward and backward graph that layer mode hands to its compiler inside; they run as they are."""
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=min_cut_rematerialization_partition)
    with mock.patch("monograph.execute.layer.find_backend", lambda _name: backend):
        yield graphs

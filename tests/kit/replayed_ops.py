"""CUDA graphs without a GPU: ops are noted while a function runs, and run again on the same memory when it is replayed.

What a recording computes then depends on the same things as on a GPU: on memory that it read, and never on Python,
which runs once. What it cannot show: memory that two recordings share.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from monograph.execute.cudagraph import CudaGraphRecorder, find_obstacles

_UNFILLED = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided")


class NotedOps(TorchDispatchMode):
    """Notes every op with the memory it reads and writes."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.made = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable and find_storage(args[0]) not in self.made:
            found = args[0]  # a recording changes nothing before it is replayed
        else:
            found = func(*args, **(kwargs or {}))
            results = [] if func.is_view else tree_leaves(found)
            self.made |= {find_storage(each) for each in results if isinstance(each, torch.Tensor)}
        self.calls.append((func, args, kwargs or {}, found))
        return found

    def replay(self):
        for func, args, kwargs, found in self.calls:
            if func.name().partition(".")[0] in _UNFILLED:
                continue  # memory is where it was, and what is in it stays
            given = {find_storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
            before = [each for each in tree_leaves(found) if isinstance(each, torch.Tensor)]
            if before and func.is_view:
                continue  # the same view of the same memory
            after = [each for each in tree_leaves(func(*args, **kwargs)) if isinstance(each, torch.Tensor)]
            for old, new in zip(before, after, strict=True):
                if find_storage(old) not in given:
                    old.copy_(new)


def find_storage(value):
    return value.untyped_storage().data_ptr()


class ReplayedOps(CudaGraphRecorder):
    """A recorder that needs no GPU."""

    def accepts(self, graph):
        return not find_obstacles(graph, device="cpu")

    def warm_up(self, run):
        with torch.no_grad():
            run()

    def record(self, run):
        noted = NotedOps()
        with torch.no_grad(), noted:
            run()
        return noted

    def replay(self, graph):
        with torch.no_grad():
            graph.replay()

    def close(self):
        pass

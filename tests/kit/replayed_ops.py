"""CUDA graphs without a GPU: ops are noted while a function runs, and run again on the same memory when it is replayed.

What a recording computes then depends on the same things as on a GPU: on memory that it read, and never on Python,
which runs once. Memory pools are modelled at their worst:

- What a recording has freed at its end may serve every later recording of its pool, so each replay of it overwrites all
  that later ones have made, and each replay of a later one overwrites what it freed.
- What somebody still refers to at its end stays, until the recording itself is replayed.

Overwritten memory holds NaN (-1 in integers): whoever reads it shows in the numbers.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from monograph.execute.cudagraph import CudaGraphRecorder, find_obstacles

_UNFILLED = ("aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::new_empty_strided")


class NotedOps(TorchDispatchMode):
    """Notes every op with the memory it reads and writes."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.made = {}
        self.freed = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.is_mutable and find_storage(args[0]) not in self.made:
            found = args[0]  # a recording changes nothing before it is replayed
        else:
            found = func(*args, **(kwargs or {}))
            for each in [] if func.is_view else find_tensors(found):
                self.made.setdefault(find_storage(each), each.detach())
        # Notes hold tensors of their own, so that the owners of the others can be counted.
        self.calls.append((func, *tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs or {}, found))))
        return found

    def end(self):
        """Find what nothing but these notes refers to."""
        noted = Counter(find_storage(value) for call in self.calls for value in find_tensors(call[1:]))
        self.freed = [each for place, each in self.made.items() if count_owners(each) == noted[place] + 1]

    def replay(self):
        for func, args, kwargs, found in self.calls:
            if func.name().partition(".")[0] in _UNFILLED:
                continue  # memory is where it was, and what is in it stays
            given = {find_storage(each) for each in find_tensors((args, kwargs))}
            before = find_tensors(found)
            if before and func.is_view:
                continue  # the same view of the same memory
            after = find_tensors(func(*args, **kwargs))
            for old, new in zip(before, after, strict=True):
                if find_storage(old) not in given:
                    old.copy_(new)


class ReplayedOps(CudaGraphRecorder):
    """A recorder that needs no GPU. A pool is the list of its recordings."""

    def __init__(self, **options):
        super().__init__(torch.device("cpu"), **options)
        self.pools = []

    def accepts(self, graph):
        return not find_obstacles(graph, device="cpu")

    def new_pool(self):
        self.pools.append([])
        return self.pools[-1]

    def warm_up(self, run, *, held=0):
        with torch.no_grad():
            run()

    def record(self, run, pool):
        noted = NotedOps()
        with torch.no_grad(), noted:
            run()
        noted.end()
        pool.append(noted)
        return noted

    def replay(self, graph):
        (pool,) = (pool for pool in self.pools if graph in pool)
        place = pool.index(graph)
        for earlier in pool[:place]:
            overwrite(earlier.freed)
        for later in pool[place + 1 :] if graph.freed else ():
            overwrite(later.made.values())
        with torch.no_grad():
            graph.replay()

    def close(self):
        pass


def find_storage(value):
    return value.untyped_storage().data_ptr()


def find_tensors(values):
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def count_owners(value):
    """How many tensors refer to the memory of this one."""
    storage = value.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata) - 1  # without `storage` itself


def overwrite(values):
    for value in values:
        value.untyped_storage().fill_(0xFF)

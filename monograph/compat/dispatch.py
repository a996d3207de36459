"""A mode that sees every op on its way to a device, and nested arguments: both are private by their modules' names."""

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map as map_leaves

__all__ = ["TorchDispatchMode", "map_leaves"]

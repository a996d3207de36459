"""The checkpoint boundary: a rank's shard that knows which part of the global tensor it is.

It speaks torch.distributed.checkpoint's protocol for tensor-like objects, so its planner can save any layout and load
it into any other. Only real elements cross the boundary; padding stays at home.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from monograph.config.references import import_on_call
from monograph.parallel.param_table import Slot

if TYPE_CHECKING:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
    from torch.distributed.checkpoint.planner import WriteItem

    from monograph.parallel.checkpoint_items import make_chunk, make_write_item
else:  # torch.distributed.checkpoint takes a second, and only its planner calls for these
    make_chunk = import_on_call("monograph.parallel.checkpoint_items:make_chunk")
    make_write_item = import_on_call("monograph.parallel.checkpoint_items:make_write_item")


class LocalizedShard:
    """One rank's part of a tensor laid out like `slot`. `local` is live storage: loading writes straight into it."""

    def __init__(self, local: Tensor, slot: Slot, rank: int) -> None:
        self._part = slot.valid_part(local, rank)
        extents = slot.extents(rank)
        self.shape = torch.Size(slot.shape)
        self.dtype = local.dtype
        self.device = local.device
        self._offsets = torch.Size(extent.start for extent in extents)
        self._sizes = torch.Size(extent.size for extent in extents)

    def to_local(self) -> Tensor:
        """This rank's real elements."""
        return self._part

    def __create_chunk_list__(self) -> "list[ChunkStorageMetadata]":
        return [make_chunk(self._offsets, self._sizes)] if self._part.numel() else []

    def __create_write_items__(self, name: str, _object: Any) -> "list[WriteItem]":
        if not self._part.numel():
            return []
        return [make_write_item(name, self._part, self.shape, make_chunk(self._offsets, self._sizes))]

    def __get_tensor_shard__(self, index: "MetadataIndex") -> Tensor:
        if index.offset is not None and tuple(index.offset) != tuple(self._offsets):
            raise ValueError(f"{index.fqn}: this rank has no chunk at {tuple(index.offset)}")
        return self._part

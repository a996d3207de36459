"""The checkpoint boundary: a rank's shard that knows which part of the global tensor it is.

It speaks torch.distributed.checkpoint's protocol for tensor-like objects, so its planner can save any layout and load
it into any other. Only real elements cross the boundary; padding stays at home.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from monograph.parallel.param_table import Slot


class LocalizedShard:
    """One rank's part of a tensor laid out like `slot`. `local` is live storage: loading writes straight into it."""

    def __init__(self, local: Tensor, slot: Slot, rank: int) -> None:
        self._part = slot.valid_part(local, rank)
        extents = slot.extents(rank)
        self.shape = torch.Size(slot.shape)
        self.dtype = local.dtype
        self.device = local.device
        self._chunk = ChunkStorageMetadata(
            offsets=torch.Size(extent.start for extent in extents), sizes=torch.Size(extent.size for extent in extents)
        )

    def to_local(self) -> Tensor:
        """This rank's real elements."""
        return self._part

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [self._chunk] if self._part.numel() else []

    def __create_write_items__(self, name: str, _object: Any) -> list[WriteItem]:
        if not self._part.numel():
            return []
        data = TensorWriteData(
            chunk=self._chunk, properties=TensorProperties.create_from_tensor(self._part), size=self.shape
        )
        return [WriteItem(index=MetadataIndex(name, self._chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        if index.offset is not None and tuple(index.offset) != tuple(self._chunk.offsets):
            raise ValueError(f"{index.fqn}: this rank has no chunk at {tuple(index.offset)}")
        return self._part

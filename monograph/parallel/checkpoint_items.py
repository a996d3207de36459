"""Entries of a rank's part of a tensor in the plans of torch.distributed.checkpoint."""

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType


def make_chunk(offsets: torch.Size, sizes: torch.Size) -> ChunkStorageMetadata:
    """Place and size of a part in its global tensor."""
    return ChunkStorageMetadata(offsets=offsets, sizes=sizes)


def make_write_item(name: str, part: Tensor, shape: torch.Size, chunk: ChunkStorageMetadata) -> WriteItem:
    """Order to write a part of the tensor `name`, whose global shape is `shape`."""
    data = TensorWriteData(chunk=chunk, properties=TensorProperties.create_from_tensor(part), size=shape)
    return WriteItem(index=MetadataIndex(name, chunk.offsets), type=WriteItemType.SHARD, tensor_data=data)

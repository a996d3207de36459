"""Loading: torch's planner decides which pieces a rank needs, for whatever layout it has; only those are read."""

import os
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlan, LoadPlanner, ReadItem, StorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.futures import Future

from monograph.train.checkpoint.finite import check_finite, find_non_finite
from monograph.train.checkpoint.held_files import HeldFiles
from monograph.train.checkpoint.manifest import CheckpointManifest, Chunk
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.staging import find_shard
from monograph.train.checkpoint.tensor_file import find_dtype
from monograph.train.checkpoint.verify import MODEL_PREFIX, VerifiedCheckpoint


class ShardLoadPlanner(DefaultLoadPlanner):
    """torch's planner, for everything that can say which chunks of a tensor it holds."""

    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """As torch's, less its replacing of meta tensors, which takes placed shards for something to leave out."""
        self.original_state_dict = self.state_dict = state_dict
        self.metadata, self.is_coordinator = metadata, is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return find_shard(self.state_dict, index)


class SafetensorsReader(StorageReader):
    """Reads a checkpoint that has been verified. Works with `dcp.load` as well as with `load_plan`."""

    def __init__(self, path: Path, manifest: CheckpointManifest, files: HeldFiles | None = None) -> None:
        self._path, self._files = path, files or HeldFiles(path)
        self.manifest = manifest
        self._chunks = {
            MetadataIndex(name, chunk.offsets): chunk
            for name, tensor in manifest.tensors.items()
            for chunk in tensor.chunks
        }

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        pass

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return False  # a checkpoint has to be verified before a reader is made for it

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The manifest in the planner's words."""
        tensors = {
            name: TensorStorageMetadata(
                properties=TensorProperties(dtype=find_dtype(tensor.dtype)),
                size=torch.Size(tensor.shape),
                chunks=[
                    ChunkStorageMetadata(offsets=torch.Size(chunk.offsets), sizes=torch.Size(chunk.sizes))
                    for chunk in tensor.chunks
                ],
            )
            for name, tensor in self.manifest.tensors.items()
        }
        return Metadata(state_dict_metadata=dict(tensors))

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = defaultdict(list)
        for item in plan.items:
            by_file[self._chunks[item.storage_index].file].append(item)
        for name, items in by_file.items():
            with safe_open(self._files.locate(name), framework="pt") as file:
                for item in items:
                    self._copy(file, item, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _copy(self, file: safe_open, item: ReadItem, planner: LoadPlanner) -> None:
        target = planner.resolve_tensor(item).detach()
        source = read_box(file, self._chunks[item.storage_index], item.storage_offsets, item.lengths)
        if source.shape != target.shape:
            raise AssertionError(f"{item.dest_index.fqn}: read {source.shape} for {target.shape}")
        name = item.storage_index.fqn
        if name.startswith(MODEL_PREFIX) and find_non_finite(source, target.dtype):
            is_infinite = bool(torch.isinf(target).any())  # as made: the mask of a model of one's own
            check_finite(source, name, self._path, target.dtype, may_be_infinite=is_infinite)
        target.copy_(source)
        planner.commit_tensor(item, target)


def read_box(file: safe_open, chunk: Chunk, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """Part of a stored chunk, counted from the chunk's own corner; the rest of it is never read."""
    if not chunk.sizes:
        return file.get_tensor(chunk.key)
    window = tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    return file.get_slice(chunk.key)[window]


def load_plan(tensors: Mapping[str, torch.Tensor], reader: SafetensorsReader, ranks: Ranks) -> None:
    """Fill this rank's tensors in place. Everything that can be checked has been checked before this is called."""
    planner = ShardLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)

    def plan_locally() -> LoadPlan:
        metadata = reader.read_metadata()
        planner.set_up_planner(dict(tensors), metadata, ranks.is_first)
        reader.set_up_storage_reader(metadata, ranks.is_first)
        return reader.prepare_local_plan(planner.create_local_plan())

    plan = planner.finish_plan(ranks.run_on_all_ranks(plan_locally))  # the default plan needs nothing from other ranks
    ranks.run_on_all_ranks(lambda: reader.read_data(plan, planner).wait())


class RegionReader:
    """The tensors of a verified checkpoint as whole tensors, read box by box."""

    def __init__(self, checkpoint: VerifiedCheckpoint) -> None:
        self.path = checkpoint.path
        self._manifest, self._held = checkpoint.manifest, checkpoint.files
        self._files: dict[str, safe_open] = {}

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """The box of that corner and size, put together from the stored chunks it touches."""
        record = self._manifest.tensors[name]
        region = torch.empty(sizes, dtype=find_dtype(record.dtype))
        for chunk in record.chunks:
            start = tuple(map(max, offsets, chunk.offsets))
            end = tuple(
                min(a + m, b + n) for a, m, b, n in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)
            )
            if all(low < high for low, high in zip(start, end, strict=True)):
                window = tuple(slice(low - a, high - a) for low, high, a in zip(start, end, offsets, strict=True))
                region[window] = self._read_chunk(chunk, start, end)
        return region

    def _read_chunk(self, chunk: Chunk, start: tuple[int, ...], end: tuple[int, ...]) -> torch.Tensor:
        if chunk.file not in self._files:
            self._files[chunk.file] = safe_open(self._held.locate(chunk.file), framework="pt")
        corner = tuple(low - own for low, own in zip(start, chunk.offsets, strict=True))
        sizes = tuple(high - low for low, high in zip(start, end, strict=True))
        return read_box(self._files[chunk.file], chunk, corner, sizes)

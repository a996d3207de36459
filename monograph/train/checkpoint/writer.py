"""Saving: torch's planner decides which rank writes which piece; this writes the pieces and commits the whole.

`SafetensorsWriter` speaks torch.distributed.checkpoint's storage protocol. `save_plan` runs that protocol itself, for
one process and for many alike: `dcp.save` would warn in one process, and hides a full disk in an error of its own.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultSavePlanner, SavePlan, SavePlanner, StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from monograph.errors import CheckpointError
from monograph.manifest.fields import FileRecord
from monograph.train.checkpoint.disk import write_file
from monograph.train.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, Chunk, TensorRecord, render_manifest
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.slow_writers import WriterWatch
from monograph.train.checkpoint.staging import find_shard
from monograph.train.checkpoint.store import Store
from monograph.train.checkpoint.tensor_file import TensorSpec, name_dtype, split_files, write_tensor_file

MAX_FILE_BYTES = 4 << 30
"""A rank's file is split beyond this, so that several threads and ranks can share the work of verifying."""
_RESERVED = "@"


@dataclass(frozen=True)
class Label:
    """What the first rank writes into the manifest beside the tensors."""

    step: int
    sequence: int
    run: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class StoredPiece:
    """Where one piece went; travels to the first rank, which writes the manifest."""

    file: str
    key: str
    record: FileRecord


class StagedSavePlanner(DefaultSavePlanner):
    """Plans with the live tensors and reads from copies of them, so that training may go on meanwhile.

    Planning needs shapes and placements only, which do not change; `staged` holds this rank's elements.
    """

    def __init__(self, staged: Mapping[str, torch.Tensor] | None = None) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._staged = staged

    def lookup_object(self, index: MetadataIndex) -> Any:
        return find_shard(self.state_dict, index) if self._staged is None else self._staged[index.fqn]


class SafetensorsWriter(StorageWriter):
    """Writes one checkpoint into a `Store`: a file per rank, then the manifest, then the rename that makes it exist."""

    def __init__(
        self,
        store: Store,
        label: Label,
        *,
        rank: int = 0,
        max_file_bytes: int = MAX_FILE_BYTES,
        watch: WriterWatch | None = None,
    ) -> None:
        self._store = store
        self._watch = watch
        self._label = label
        self._rank = rank
        self._max_file_bytes = max_file_bytes
        self._prepared: Path | None = None

    def reset(self, checkpoint_id: str | os.PathLike | None = None) -> None:
        self._prepared = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike) -> bool:
        return False  # a checkpoint's place follows from the store and the step

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._prepared = None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        for item in plan.items:
            name = item.index.fqn
            if item.tensor_data is None:
                raise CheckpointError(f"{name} cannot be saved", why="it is not a tensor", do="put it into the values")
            if not name or name == "__metadata__" or _RESERVED in name:
                raise CheckpointError(f"{name!r} cannot be saved", why="the file format needs that name for itself")
            name_dtype(item.tensor_data.properties.dtype, name)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank, when all plans are known: make the folder and tell everyone its name."""
        self._prepared = self._store.prepare(self._label.step)
        return [dataclasses.replace(plan, storage_data=str(self._prepared)) for plan in plans]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        folder = Path(plan.storage_data)
        items = {spec.key: (spec, item) for item in plan.items if (spec := find_spec(item)).num_bytes}
        results: list[WriteResult] = []
        files = split_files((spec for spec, _ in items.values()), self._max_file_bytes)
        for number, specs in enumerate(files):
            name = _name_file(self._rank, number, len(files))
            with self._writing(folder / name):
                record = write_tensor_file(
                    self._store.disk, folder / name, specs, lambda spec: [_resolve(planner, *items[spec.key])]
                )
            results += [
                WriteResult(items[spec.key][1].index, spec.num_bytes, StoredPiece(name, spec.key, record))
                for spec in specs
            ]
        with self._writing(folder):
            self._store.disk.sync_folder(folder)
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank, when all files are on disk: write the manifest and commit."""
        if self._prepared is None:
            raise AssertionError("finish follows prepare_global_plan")
        stored = {result.index: result.storage_data for part in results for result in part}
        manifest = CheckpointManifest(
            step=self._label.step,
            sequence=self._label.sequence,
            run=self._label.run,
            values=self._label.values,
            tensors={
                name: describe_tensor(name, entry, stored) for name, entry in metadata.state_dict_metadata.items()
            },
            files={piece.file: piece.record for piece in stored.values()},
        )
        with self._writing(self._prepared / MANIFEST_NAME):
            write_file(self._store.disk, self._prepared / MANIFEST_NAME, render_manifest(manifest))
            self._store.disk.sync_folder(self._prepared)
            self._store.commit(self._prepared, self._store.step_path(self._label.step))
        self._prepared = None

    def _writing(self, path: Path) -> AbstractContextManager[None]:
        return self._watch.writing(path) if self._watch is not None else nullcontext()

    def discard(self) -> None:
        """After an error on the first rank: take away what was written so far."""
        if self._prepared is not None and self._prepared.exists():
            self._store.delete(self._prepared)
        self._prepared = None


def save_plan(
    tensors: Mapping[str, torch.Tensor], planner: SavePlanner, writer: SafetensorsWriter, ranks: Ranks
) -> None:
    """Plan, write and commit one checkpoint, all ranks together; on an error nothing of it remains."""

    def plan_locally() -> SavePlan:
        planner.set_up_planner(dict(tensors), is_coordinator=ranks.is_first)
        writer.set_up_storage_writer(ranks.is_first)
        return writer.prepare_local_plan(planner.create_local_plan())

    def plan_globally(plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        shared, metadata = planner.create_global_plan(plans)
        return writer.prepare_global_plan(shared), metadata

    try:
        plans = ranks.gather(ranks.run_on_all_ranks(plan_locally))
        planned = ranks.run_on_rank0(lambda: plan_globally(plans))
        plan = planner.finish_plan(ranks.scatter(planned[0] if planned else []))
        results = ranks.gather(ranks.run_on_all_ranks(lambda: writer.write_data(plan, planner).wait()))
        ranks.run_on_rank0(lambda: writer.finish(planned[1], results) if planned else None)
    except Exception:
        writer.discard()
        raise


def check_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the values, as they will be read back; an error when JSON would change them."""
    try:
        copy = json.loads(json.dumps(values, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError("the values cannot be saved", why=f"they are not plain JSON: {error}") from None
    changed = sorted(name for name in copy if name not in values or copy[name] != values[name])
    if changed:
        raise CheckpointError(
            f"the value {changed[0]} cannot be saved",
            why="JSON would change it (a tuple, or a key that is not a string)",
        )
    return copy


def find_spec(item: WriteItem) -> TensorSpec:
    data = item.tensor_data
    if data is None:
        raise AssertionError("prepare_local_plan lets only tensors pass")
    whole = tuple(data.chunk.sizes) == tuple(data.size)
    key = item.index.fqn if whole else f"{item.index.fqn}{_RESERVED}{','.join(map(str, data.chunk.offsets))}"
    return TensorSpec(key, data.properties.dtype, tuple(data.chunk.sizes))


def _resolve(planner: SavePlanner, spec: TensorSpec, item: WriteItem) -> torch.Tensor:
    tensor = planner.resolve_data(item)
    if not isinstance(tensor, torch.Tensor) or (tensor.dtype, tuple(tensor.shape)) != (spec.dtype, spec.shape):
        raise AssertionError(f"{spec.key} is not what was planned")
    return tensor


def _name_file(rank: int, number: int, count: int) -> str:
    part = f"-{number + 1:03d}" if count > 1 else ""
    return f"rank-{rank:05d}{part}.safetensors"


def describe_tensor(name: str, entry: Any, stored: Mapping[MetadataIndex, StoredPiece]) -> TensorRecord:
    if not isinstance(entry, TensorStorageMetadata):
        raise AssertionError(f"{name} is not a tensor")
    chunks = []
    for chunk in entry.chunks:
        if chunk.sizes.numel():
            piece = stored[MetadataIndex(name, chunk.offsets)]
            chunks.append(Chunk(tuple(chunk.offsets), tuple(chunk.sizes), piece.file, piece.key))
    return TensorRecord(name_dtype(entry.properties.dtype, name), tuple(entry.size), tuple(chunks))

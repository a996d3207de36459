"""Saving and resuming a run: the one object of this package that the trainer holds.

A save that storage refuses (disk full, I/O error) is logged and training goes on, since the checkpoints before it are
untouched; it is raised only when it was the last one (`wait`, `close`), or always with `on_error = "stop"`.
"""

import hashlib
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
import torch.distributed as dist

from monograph.config.configurable import Configurable
from monograph.config.references import import_on_call
from monograph.errors import CheckpointError
from monograph.line_file import Steps
from monograph.log import get_log
from monograph.permissions import find_exposed
from monograph.system.own_tree import is_plain_folder
from monograph.train.checkpoint.choose import choose, find_latest, has_any
from monograph.train.checkpoint.config import AUTO, CheckpointConfig
from monograph.train.checkpoint.disk import Disk
from monograph.train.checkpoint.finite import NonFiniteError
from monograph.train.checkpoint.hf_assets import CONFIG_NAME
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.manifest import ManifestHead
from monograph.train.checkpoint.manifest_file import DamagedError, find_foreign_files, read_head
from monograph.train.checkpoint.patient_read import UnreadableError
from monograph.train.checkpoint.ranks import PeerError, Ranks, is_disk_error
from monograph.train.checkpoint.slow_writers import WriterWatch
from monograph.train.checkpoint.staging import Staging
from monograph.train.checkpoint.store import Store, describe_choices, is_checkpoint
from monograph.train.checkpoint.verify import (
    MODEL_PREFIX,
    LoadRequest,
    check_request,
    check_same_weights,
    find_casts,
)

if TYPE_CHECKING:
    from monograph.train.checkpoint.hf_storage_reader import HfStorageReader
    from monograph.train.checkpoint.reader import SafetensorsReader, load_plan
    from monograph.train.checkpoint.writer import Label, SafetensorsWriter, StagedSavePlanner, check_values, save_plan
else:  # torch.distributed.checkpoint takes a second, which the first step does not wait for
    HfStorageReader = import_on_call("monograph.train.checkpoint.hf_storage_reader:HfStorageReader")
    SafetensorsReader = import_on_call("monograph.train.checkpoint.reader:SafetensorsReader")
    load_plan = import_on_call("monograph.train.checkpoint.reader:load_plan")
    Label = import_on_call("monograph.train.checkpoint.writer:Label")
    SafetensorsWriter = import_on_call("monograph.train.checkpoint.writer:SafetensorsWriter")
    StagedSavePlanner = import_on_call("monograph.train.checkpoint.writer:StagedSavePlanner")
    check_values = import_on_call("monograph.train.checkpoint.writer:check_values")
    save_plan = import_on_call("monograph.train.checkpoint.writer:save_plan")

log = get_log(__name__)


@dataclass(frozen=True)
class Loaded:
    """What a load found besides the tensors it filled. With `model_only` the run starts anew: step 0 and no values."""

    step: int
    values: dict[str, Any]
    path: Path
    model_only: bool


@dataclass(frozen=True)
class _Failure:
    step: int
    error: Exception


class ValuesCheck(Protocol):
    """Raises when a checkpoint's plain values do not fit the run that loads it."""

    def __call__(self, values: Mapping[str, Any], path: Path, *, model_only: bool) -> None: ...


class CheckpointManager(Configurable):
    """Writes checkpoints into `folder` and reads them from anywhere.

    With several ranks, `process_group` is a gloo group of all of them that nothing else uses, `folder` is on a file
    system they share, and every method is called by all of them. `last_saved` is the newest checkpoint written here.
    """

    Config = CheckpointConfig

    def __init__(
        self,
        config: CheckpointConfig,
        *,
        folder: Path,
        process_group: dist.ProcessGroup | None = None,
        disk: Disk | None = None,
        opens: bool = True,
    ) -> None:
        """Without `opens` nothing is written, not even a lock, before `open` is called."""
        self.config = config
        self.folder = Path(folder)
        self._ranks = Ranks(process_group)
        self._store = Store(Path(folder), disk)
        self.writers = WriterWatch(self._ranks, limit=config.slow_write_seconds)
        self._run = secrets.token_hex(8)
        self._staging = Staging()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._failure: _Failure | None = None
        self.last_saved: Path | None = None
        self._warned: set[Path] = set()
        self._missed: dict[str, Steps] = {}
        self._heads: dict[Path, ManifestHead | None] = {}
        self._sequence = 0
        """The largest of what was loaded or saved, which may be unreadable later."""
        self._is_open = False
        if opens:
            self.open()

    def open(self, *, is_new: bool = False) -> None:
        """Keep other writers out of the folder and finish what a killed one left half done. Safe to call twice.

        A new run (`is_new`) is refused in a folder that holds checkpoints of another one.
        """
        if self.config.enabled and not self._is_open:
            self._open(is_new=is_new)
            self._is_open = True
            self._warn_of_writers(self._store.folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._shut()  # the error under way matters more than a save that failed

    def is_due(self, step: int, *, last: bool = False) -> bool:
        """Whether a checkpoint is to be written after this step."""
        on_the_way = self.config.interval > 0 and step % self.config.interval == 0
        return self.config.enabled and (on_the_way or (last and self.config.save_last))

    def save(self, step: int, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Write a checkpoint of this step. An asynchronous save returns once the state has been copied."""
        self._settle()
        values = check_values(values)
        if not self.config.async_save:
            self._write(step, dict(tensors), StagedSavePlanner(), values)
            self._settle()
            return
        planner = StagedSavePlanner(self._staging.stage(tensors))
        self._pending = self._pool.submit(self._write, step, dict(tensors), planner, values)

    def load(
        self,
        which: str | int | Path,
        tensors: Mapping[str, torch.Tensor],
        *,
        model_only: bool | None = None,
        check: ValuesCheck | None = None,
    ) -> Loaded:
        """Fill `tensors` in place from `latest`, a step number or a path, after everything has been verified.

        `check` may refuse the checkpoint by its values.
        """
        self._settle()
        start = time.perf_counter()
        model_only = self.config.load_model_only if model_only is None else model_only
        wanted = {name: tensor for name, tensor in tensors.items() if not model_only or name.startswith(MODEL_PREFIX)}
        chosen = choose(self._store, which, self._ranks)
        path, manifest = chosen.path, chosen.manifest
        self._warn_of_writers(path.parent, path, *(path / name for name in manifest.files))
        requests = self._merge_requests(wanted)
        check_request(path, manifest, requests, model_only=model_only)
        if check is not None:
            check(manifest.values, path, model_only=model_only)
        for text in find_casts(manifest, requests):
            log.warning("%s", text)
        self._fill(path, SafetensorsReader(path, manifest, chosen.files), wanted)
        log.info("loaded %s%s in %.1f s", path, " (weights only)" if model_only else "", time.perf_counter() - start)
        if model_only:
            return Loaded(0, {}, path, True)
        self._run, self._sequence = manifest.run, max(self._sequence, manifest.sequence)
        return Loaded(manifest.step, dict(manifest.values), path, False)

    def resume(self, tensors: Mapping[str, torch.Tensor], *, check: ValuesCheck | None = None) -> Loaded | None:
        """Load what the config asks for; None when the run is to start from scratch."""
        which, start = self.config.load, self.config.initial_load_path
        if which and self.config.enabled and not self._is_open:
            self._ranks.run_on_rank0(self._store.put_back)
        if which and (which != AUTO or has_any(self._store, self._ranks)):
            return self.load(which, tensors, check=check)
        if which:
            log.info("%s: starting from %s", describe_choices(self._store), start or "scratch")
        return self.load_weights(Path(start), tensors, check=check) if start else None

    def load_weights(
        self, source: Path, tensors: Mapping[str, torch.Tensor], *, check: ValuesCheck | None = None
    ) -> Loaded:
        """Fill the weights among `tensors` from a checkpoint, a folder of them, or a Hugging Face folder."""
        is_hf = self._ranks.run_on_rank0(lambda: not is_checkpoint(source) and (source / CONFIG_NAME).is_file())
        if not self._ranks.broadcast_object(is_hf):
            return self.load(source, tensors, model_only=True, check=check)
        begin = time.perf_counter()
        wanted = {name: tensor for name, tensor in tensors.items() if name.startswith(MODEL_PREFIX)}
        reader = self._ranks.run_on_all_ranks(lambda: HfStorageReader(HfWeights(source)))
        check_same_weights(source, self._ranks.run_on_all_ranks(reader.weights.folder.digest), self._ranks)
        check_request(source, reader.manifest, self._merge_requests(wanted), model_only=True)
        if check is not None:
            check(reader.manifest.values, source, model_only=True)
        self._fill(source, reader, wanted)
        log.info("loaded %s (weights only) in %.1f s", source, time.perf_counter() - begin)
        return Loaded(0, {}, source, True)

    def set_later_aside(self, step: int) -> None:
        """Keep the checkpoints after `step`, in whose place a run that goes on from it will save, beside the folder."""
        self._ranks.run_on_rank0(lambda: self._store.set_later_aside(step))

    def holds(self, path: Path) -> bool:
        """Whether a checkpoint lies in this run's folder; its name there may be a link to where it is archived."""
        return self.folder.resolve() in (path.resolve().parent, path.parent.resolve())

    def latest(self) -> Path | None:
        """The newest good checkpoint, or None when there is none; an error when there is nothing but damaged ones."""
        self._settle()
        return find_latest(self._store, self._ranks)

    def find_missing(self) -> list[str]:
        """The checkpoints that could not be written, by reason."""
        return [f"the checkpoint of {steps} is missing: {reason}" for reason, steps in self._missed.items()]

    def wait(self) -> None:
        """Wait for a save under way; raises when the most recent save failed."""
        self._settle(final=True)

    def close(self) -> None:
        """Finish what is under way and release the folder; raises when the most recent save failed."""
        try:
            self.wait()
        finally:
            self._shut()

    def _open(self, *, is_new: bool) -> None:
        try:
            self._ranks.run_on_rank0(lambda: self._store.open(is_new=is_new))
            owner = self._ranks.broadcast_object(self._store.read_owner())
            self._ranks.run_on_all_ranks(lambda: self._check_shared(owner))
        except PeerError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {self._store.folder}",
                why=str(error),
                do="choose another --checkpoint.folder, or --checkpoint.enabled false",
            ) from None

    def _warn_of_writers(self, folder: Path, *inside: Path) -> None:
        """Say once that other users can change checkpoints: they hold no code, but they decide what a run computes."""
        exposed = find_exposed((folder, *inside)) if self._ranks.rank == 0 and folder not in self._warned else []
        if exposed:
            self._warned.add(folder)
            log.warning(
                "other users can change the checkpoints in %s (%s); chmod -R go-w %s takes their right to write away",
                *(folder, exposed[0], folder),
            )

    def _check_shared(self, owner: str) -> None:
        """Refuse at the start what would otherwise make every save fail."""
        seen = self._store.read_owner()
        if seen != owner:
            raise CheckpointError(
                f"rank {self._ranks.rank} does not see the folder {self._store.folder} of the first rank",
                why=f"its lock says '{owner}' there and '{seen}' here",
                do="put --job.dump_folder on a file system that all machines share",
            )

    def _shut(self) -> None:
        self._pool.shutdown(wait=True)
        self._store.close()

    def _settle(self, *, final: bool = False) -> None:
        """Wait for the save under way and decide whether its failure, if any, stops the run."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
        failure = self._failure
        if failure is None:
            return
        if not is_disk_error(failure.error):
            self._failure = None
            raise failure.error
        if final or self.config.on_error == "stop":
            self._failure = None
            raise CheckpointError(
                f"the checkpoint of step {failure.step} could not be written to {self._store.folder}",
                why=str(failure.error),
                do=f"make room or choose another --checkpoint.folder; {describe_choices(self._store)}",
            ) from failure.error

    def _write(
        self, step: int, tensors: dict[str, torch.Tensor], planner: StagedSavePlanner, values: dict[str, Any]
    ) -> None:
        """One whole save; an error is kept for `_settle`, and one of storage is told at once."""
        start = time.perf_counter()
        try:
            sequence = self._ranks.run_on_rank0(self._find_next_sequence) or 0
            label = Label(step, sequence, self._run, values)
            writer = SafetensorsWriter(self._store, label, rank=self._ranks.rank, watch=self.writers)
            with self.writers.watching(step):
                save_plan(tensors, planner, writer, self._ranks)
            self._heads.pop(self._store.step_path(step), None)
            self._sequence = max(self._sequence, sequence)
        except Exception as error:
            self._failure = _Failure(step, error)
            if is_disk_error(error):
                self._missed.setdefault(_find_reason(error), Steps()).add(step)
                log.error("the checkpoint of step %d could not be written: %s; older ones are kept", step, error)
            return
        self._failure = None
        self.last_saved = self._store.step_path(step)
        log.info("saved %s in %.1f s", self.last_saved, time.perf_counter() - start)
        try:
            self._ranks.run_on_rank0(self._prune)
        except Exception as error:
            if is_disk_error(error):
                log.warning("older checkpoints are kept: %s", error)
            else:
                self._failure = _Failure(step, error)

    def _fill(self, path: Path, reader: SafetensorsReader, tensors: dict[str, torch.Tensor]) -> None:
        try:
            load_plan(tensors, reader, self._ranks)
        except NonFiniteError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"loading {path} stopped half way: the state is incomplete", why=str(error), do="start the run again"
            ) from error

    def _merge_requests(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, LoadRequest]:
        """What all ranks ask for together. They mostly ask for the same, so a hash is compared before lists travel."""
        mine = {name: LoadRequest(tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
        digest = hashlib.sha256(repr(sorted(mine.items(), key=lambda entry: entry[0])).encode()).digest()
        if len(set(self._ranks.all_gather_object(digest))) == 1:
            return mine
        return {name: request for part in self._ranks.all_gather_object(mine) for name, request in part.items()}

    def _find_next_sequence(self) -> int:
        return max((self._sequence, *(head.sequence for _, head in self._read_heads()))) + 1

    def _prune(self) -> None:
        """Delete this run's oldest checkpoints beyond `keep_last`; the one just committed was read back and stays.

        A link in the place of a checkpoint was made by somebody who keeps it elsewhere: it stays, and does not count.
        Neither does one with files that it does not list, such as an export: they would be deleted with it.
        """
        found = self._read_heads() if self.config.keep_last else []
        mine = [(head.sequence, path) for path, head in found if head.run == self._run and is_plain_folder(path)]
        for _, path in sorted(mine)[: -self.config.keep_last]:
            try:
                reason = ", ".join(find_foreign_files(path)[:3])
            except (OSError, ValueError) as error:
                reason = str(error)
            if not reason:
                self._store.delete(path)
            elif path not in self._warned:
                self._warned.add(path)
                log.warning("%s is not deleted (checkpoint.keep_last): it holds more than it lists: %s", path, reason)

    def _read_heads(self) -> list[tuple[Path, ManifestHead]]:
        """Those that are intact, each read once: nobody else writes here. What is damaged is never deleted, nor what
        cannot be read now, which is looked at again the next time."""
        heads: dict[Path, ManifestHead | None] = {}
        for path in self._store.find_all():
            try:
                heads[path] = self._heads[path] if path in self._heads else read_head(path)
            except DamagedError:
                heads[path] = None
            except UnreadableError as error:
                log.warning("%s", error.what)
        self._heads = heads
        return [(path, head) for path, head in heads.items() if head is not None]


def _find_reason(error: Exception) -> str:
    """Why storage refused, without the file's name: the same reason for many checkpoints is told once."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)

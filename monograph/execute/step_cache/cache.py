"""Captured steps of earlier runs, in the user's cache folder: a run with the same key starts without capturing.

An entry is believed because nobody but its user could have written it: folder and file belong to that user and are
closed to others, and so is the way to them. It holds no code, and its hash and key are checked all the same. Whatever
is wrong with the folder or an entry, the step is captured as if there were no cache.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from monograph.axes import Axis
from monograph.config.configurable import BaseConfig
from monograph.config.sources import find_changed, find_readers
from monograph.errors import ConfigError
from monograph.execute.artifact.compare import find_own_code
from monograph.execute.artifact.node_copy import is_first_of_node
from monograph.execute.artifact.open import WantedGraph
from monograph.execute.config import CompileConfig
from monograph.execute.step_cache.entry import UnusableEntry, parse_entry, render_entry
from monograph.execute.step_cache.key import StepKey, describe_run, make_key
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.passes.runner import OptimizedGraph
from monograph.permissions import find_exposed_parents, find_writer, read_acl
from monograph.system.cache_folder import find_cache_folder, make_private_folder, remove_oldest
from monograph.system.foreign_text import show
from monograph.system.own_file import open_own
from monograph.whole_file import write_whole

MAX_BYTES = 256 << 20
"""Of all entries; beyond it, those that were not used for longest are deleted."""
MAX_ENTRY_BYTES = 64 << 20
_ENTRY = re.compile(r"[0-9a-f]{32}\.json")

log = get_log("cache")


def open_cache(config: BaseConfig, settings: CompileConfig, groups: Groups) -> "StepCache | None":
    """The entries of a run; None where they are switched off, nothing is captured, or an artifact has the graphs."""
    is_captured = settings.mode == "graph" and not settings.artifact
    return StepCache(config, groups) if is_captured and settings.cache == "on" else None


class StepCache:
    """The entries of one run."""

    def __init__(self, config: BaseConfig, groups: Groups) -> None:
        """`folder` is None where there is no folder that can be trusted: then nothing is read or kept."""
        self.folder = _open_folder()
        self.has_read = False
        is_first_of_stage = groups.rank % groups.mesh.stride(Axis.PP) == 0
        self._is_writer = is_first_of_stage or is_first_of_node()  # nodes may have a home folder each
        self._run: dict[str, Any] = {}
        try:
            if self.folder is not None:
                self._run = describe_run(config, groups)
                _check_sources(config)
        except ConfigError as error:  # code that was typed into a notebook has no source that could be compared
            log.debug("the captured step is not kept: %s", error)
            self.folder = None

    def load(self, wanted: WantedGraph, table: ParamTable) -> OptimizedGraph | None:
        """A graph that an earlier run has kept; None where there is none that can be used."""
        if self.folder is None:
            return None
        key = make_key(self._run, wanted, table)
        path = self.folder / _name(key)
        try:
            found = parse_entry(_read(path), key, wanted)
        except FileNotFoundError:
            return None
        except (OSError, UnusableEntry) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            log.warning("%s is not used, and the step is captured again: %s", path, show(why))
            return None
        if not self.has_read:
            self.has_read = True
            log.info("the captured step is an earlier run's, kept in %s (--compile.cache off captures it)", self.folder)
        return found

    def store(self, wanted: WantedGraph, table: ParamTable, captured: OptimizedGraph) -> None:
        """Keep a graph for later runs; one rank of those that capture the same writes it."""
        if self.folder is None or not self._is_writer:
            return
        key = make_key(self._run, wanted, table)
        content = render_entry(key, wanted, captured)
        if content is None or len(content) > MAX_ENTRY_BYTES:
            log.debug("the graph %s is not kept: it has compiled parts, ops of no list, or is too large", wanted.name)
            return
        try:
            write_whole(self.folder / _name(key), content, mode=0o600)
            remove_oldest(self.folder, _ENTRY, max_bytes=MAX_BYTES)
        except OSError as error:
            log.debug("the captured step is not kept: %s", error)


def _check_sources(config: BaseConfig) -> None:
    """Raise ConfigError where equal sources do not mean equal steps.

    What a model or a pass reads from a file is in no key. Sources are read now, maybe minutes after Python did so.
    """
    if readers := find_readers(find_own_code(config)):
        raise ConfigError("a step by code that reads files cannot be compared", why=readers[0])
    if changed := find_changed():
        raise ConfigError("the source of loaded code has changed since this program started", why=changed[0])


def _open_folder() -> Path | None:
    try:
        folder = find_cache_folder("steps")
        make_private_folder(folder)
    except OSError as error:
        log.debug("captured steps are not kept: %s", error)
        return None
    if exposed := find_exposed_parents(folder):
        log.debug("captured steps are not kept: others could replace %s (%s)", folder, exposed[0])
        return None
    return folder


def _name(key: StepKey) -> str:
    return f"{key.digest}.json"


def _read(path: Path) -> bytes:
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        status = os.fstat(file.fileno())
        if writer := find_writer(status, read_acl(file.fileno())):
            raise UnusableEntry(f"others can write it: {writer}")
        if status.st_size > MAX_ENTRY_BYTES:
            raise UnusableEntry(f"it has {status.st_size} bytes")
        content = file.read(MAX_ENTRY_BYTES + 1)
        with suppress(OSError):  # on a disk that is read-only
            os.utime(file.fileno())  # used now
        return content

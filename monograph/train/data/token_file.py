"""Files of packed tokens and their tables, which may be cut or overwritten while a run reads them.

A page of a mapped file that is no longer there kills the process with SIGBUS, without a word. So tokens are read with
pread, which says how much it read, and the tables, which are mapped for their size, are measured before each look-up.
"""

import mmap
import os
import weakref
from io import BufferedReader
from pathlib import Path

import numpy as np

from monograph.errors import MonographError
from monograph.system.foreign_json import open_regular
from monograph.train.data.file_checks import damaged

_MOST_BYTES = 1 << 30
"""Read by one call; the system reads at most 2 GiB."""


class TokenFile:
    """Tokens of a file as a sequence that is sliced; each slice is read anew and its ids are checked."""

    def __init__(self, path: Path, dtype: np.dtype, size: int, max_token_id: int) -> None:
        self.path, self.dtype, self.max_token_id = path, dtype, max_token_id
        with _open(path, size) as file:
            self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        self._tokens = size // dtype.itemsize

    def __len__(self) -> int:
        return self._tokens

    def __getitem__(self, part: slice) -> np.ndarray:
        """The tokens of a slice without a step; DataError for those that are gone or that no id of the index covers."""
        start, stop, _ = part.indices(self._tokens)
        data = self._read(start * self.dtype.itemsize, max(stop - start, 0) * self.dtype.itemsize)
        tokens = np.frombuffer(data, self.dtype)
        largest = int(tokens.max(initial=0))
        if largest > self.max_token_id:
            raise damaged(
                self.path, f"it holds the token id {largest}; its index says that none is above {self.max_token_id}"
            )
        return tokens

    def _read(self, offset: int, size: int) -> bytes:
        pieces = []
        while size > 0:
            try:
                piece = os.pread(self._file, min(size, _MOST_BYTES), offset)
            except OSError as error:
                raise damaged(self.path, str(error)) from None
            if not piece:
                raise damaged(self.path, f"it was cut while it was read: it ends before byte {offset + size}")
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class MappedTable:
    """A table of numbers as an array that the system reads page by page."""

    def __init__(self, path: Path, dtype: np.dtype, size: int) -> None:
        self.path, self._size = path, size
        try:
            with _open(path, size) as file:
                self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.values = np.frombuffer(self._mapping, dtype)
        except (OSError, ValueError) as error:
            raise damaged(path, str(error)) from None

    def check(self) -> None:
        """Raise DataError when the file has been cut since, before a look-up that would end the process."""
        if self._mapping.size() < self._size:
            raise damaged(self.path, "it was cut while it was read")


def _open(path: Path, size: int) -> BufferedReader:
    """Open a file that has `size` bytes, for reading."""
    try:
        file = open_regular(path)
    except (OSError, MonographError) as error:
        raise damaged(path, error.why if isinstance(error, MonographError) else str(error)) from None
    found = os.fstat(file.fileno()).st_size
    if found != size:
        file.close()
        raise damaged(path, f"it has {found} bytes and should have {size}")
    return file

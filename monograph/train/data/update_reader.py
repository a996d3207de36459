"""The micro-batches of one update after another, for a part of the global batch that may change between them."""

from types import TracebackType
from typing import Self

from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.data.prefetcher import Prefetcher


class UpdateReader:
    """Reads ahead for the part it was asked for last. Another part, or another position than the next one (an update
    that was not made is read again), starts reading there anew."""

    def __init__(self, data: DataLoader, *, local_batch_size: int, global_batch_size: int) -> None:
        self.data, self.local, self.whole = data, local_batch_size, global_batch_size
        self._batches: Prefetcher[Batch] | None = None
        self._part, self._next = (0, 0), Cursor()

    def open(self, cursor: Cursor, part: int, parts: int) -> Prefetcher[Batch]:
        """Micro-batches from the cursor on, being made in the background."""
        if self._batches is None or (self._part, self._next) != ((part, parts), cursor):
            self.close()
            self._batches = self.data.batches(
                cursor, local_batch_size=self.local, global_batch_size=self.whole, part=part, parts=parts
            )
            self._part, self._next = (part, parts), cursor
        return self._batches

    def wait(self, cursor: Cursor, part: int, parts: int) -> None:
        """Wait for the first micro-batch, so that data that cannot be read is known before anything is started."""
        self.open(cursor, part, parts).wait()

    def read(self, cursor: Cursor, part: int, parts: int) -> list[Batch]:
        """The micro-batches of one part of the update that begins at the cursor."""
        batches = self.open(cursor, part, parts)
        chosen = [next(batches) for _ in range(self.whole // (self.local * parts))]
        if chosen[0].cursor != cursor:  # a stream that silently restarted is the field's classic
            raise RuntimeError(f"the loader is at {chosen[0].cursor}, the trainer at {cursor}")
        self._next = cursor.advance(self.whole, self.data.samples_per_epoch)
        return chosen

    def close(self) -> None:
        """End the background reader. Safe to call again."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

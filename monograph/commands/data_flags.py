"""Data errors of `data pack` and `evaluate`: their flags have no `dataloader.` prefix. Loads without torch."""

from collections.abc import Iterator
from contextlib import contextmanager

from monograph.errors import DataError

_SECTION = "--dataloader."


@contextmanager
def flags_without_section() -> Iterator[None]:
    """What is wrong with data, with `--text_field` in place of `--dataloader.text_field`; a dataset needs no flag."""
    try:
        yield
    except DataError as error:
        advice = error.do.replace(f"{_SECTION}dataset ", "").replace(_SECTION, "--")
        raise DataError(error.what, why=error.why, do=advice) from None

"""Advice about data in the flags of commands that are no runs, whose fields have no section. Loads without torch."""

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

"""Settings of libraries that are variables of the environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def variables_set(values: dict[str, str]) -> Iterator[None]:
    """Inside, these variables have these values. Others are left alone: threads may be reading or setting them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""Settings of kernels that can be tuned: they change how fast a kernel is, and no bit of its results.

Where a kernel is launched, `Tunable.choose` returns the settings for the sizes of that launch: the first candidate, or
the one that was found to be faster on this kind of GPU (docs/decisions/0041).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

Settings = Mapping[str, int]
"""Of a launch: constants of the kernel, num_warps, num_stages. Empty for what the launcher takes by itself."""


class TunedKey(NamedTuple):
    """What settings are chosen for: a kernel, and the sizes it is launched with."""

    kernel: str
    sizes: tuple[int, ...]


class Tunable:
    """A kernel's settings to choose from, the default first.

    Only for settings that cannot change results: the order of tiles, stages, warps of a kernel that sums nothing.
    """

    def __init__(self, kernel: str, *candidates: Settings) -> None:
        self.kernel = kernel
        self.candidates = tuple(dict(each) for each in candidates)

    def choose(self, *sizes: int) -> dict[str, int]:
        """The settings of a launch; `sizes` are all that its time depends on, dtypes as bytes of an element."""
        key = TunedKey(self.kernel, sizes)
        if _state.asked is not None:
            _state.asked[key] = self
        found = _state.chosen.get(key)
        return dict(found) if found in self.candidates else dict(self.candidates[0])


class _State:
    """What launches of this process use. Threads share it: autograd launches kernels from its own."""

    def __init__(self) -> None:
        self.chosen: dict[TunedKey, Settings] = {}
        self.asked: dict[TunedKey, Tunable] | None = None


_state = _State()


def use_choices(choices: Mapping[TunedKey, Settings]) -> None:
    """From now on, launch with these, too; a choice that is no candidate of its kernel has no effect."""
    _state.chosen.update(choices)


def replace_choices(choices: Mapping[TunedKey, Settings]) -> None:
    """From now on, launch with these, and with defaults where there is none."""
    _state.chosen = dict(choices)


@contextmanager
def chosen(key: TunedKey, settings: Settings) -> Iterator[None]:
    """Inside, one kernel is launched with these settings for one combination of sizes."""
    before = dict(_state.chosen)
    _state.chosen[key] = settings
    try:
        yield
    finally:
        _state.chosen = before


@contextmanager
def recorded_choices() -> Iterator[dict[TunedKey, Tunable]]:
    """What launches inside choose settings for."""
    before, _state.asked = _state.asked, {}
    try:
        yield _state.asked
    finally:
        _state.asked = before


@contextmanager
def no_choices() -> Iterator[None]:
    """Inside, nothing was chosen yet; what is chosen inside is forgotten."""
    before, _state.chosen = _state.chosen, {}
    try:
        yield
    finally:
        _state.chosen = before

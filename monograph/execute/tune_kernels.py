"""Tune the custom kernels of a step: try all candidates of their settings, keep the fastest with equal bits.

The default stays unless another candidate is faster by more than noise. A candidate that cannot be built or launched is
skipped; one with results that differ from the default's in one bit is discarded with a warning.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from monograph.compat.triton import TritonError
from monograph.execute.custom_kernels import KernelCall
from monograph.graph.tensor_meta import TensorMeta
from monograph.kernels.tuned_file import TunedKernel
from monograph.kernels.tuning import Settings, Tunable, TunedKey, chosen, recorded_choices, use_choices
from monograph.log import get_log

log = get_log("tune")
MARGIN = 0.02
"""By how much of the default's time a candidate must be faster: less is noise."""
Run = Callable[[], Any]
"""Launches the kernels of one call; returns its results."""


class TuningDevice(Protocol):
    """What kernels are tuned on."""

    def prepare(self, call: KernelCall) -> Run:
        """A run to be given to `build`: its tensors may have no values."""

    def build(self, runs: Sequence[Run]) -> None:
        """Build the kernels of these runs side by side; what cannot be built fails when it is launched."""

    def make_run(self, call: KernelCall) -> Run:
        """A run on tensors with random values, the same each time."""

    def measure(self, runs: Sequence[Run]) -> list[list[float]]:
        """Rounds of milliseconds, in each round one for every run."""


class PlannedCall(NamedTuple):
    """A call, and what it chooses settings for."""

    call: KernelCall
    asked: dict[TunedKey, Tunable]


def tune_calls(calls: Iterable[KernelCall], device: TuningDevice, known: Collection[TunedKey]) -> list[TunedKernel]:
    """Tune what these calls choose settings for and is not known yet; from now on it is launched so."""
    found: dict[TunedKey, TunedKernel] = {}
    for call, asked in plan_calls(calls, device, known):
        left = {key: tunable for key, tunable in asked.items() if key not in found}
        try:
            run = device.make_run(call) if left else None
            for key, tunable in left.items():
                assert run is not None
                found[key] = tune_kernel(run, key, tunable, device)
                use_choices({key: found[key].settings})
        except torch.OutOfMemoryError:
            log.warning("%s is not tuned: the GPU has too little free memory", call.name)
    return list(found.values())


def plan_calls(calls: Iterable[KernelCall], device: TuningDevice, known: Collection[TunedKey]) -> list[PlannedCall]:
    """The calls that there is something to tune of, with all of their candidates built.

    A call with a size that the data decides is left out: its kernels are launched with another size in every step.
    """
    planned = [PlannedCall(call, {}) for call in calls if has_known_sizes(call)]

    def record(each: PlannedCall) -> None:
        with recorded_choices() as asked:
            device.prepare(each.call)()
        each.asked.update({key: tunable for key, tunable in asked.items() if key not in known})

    device.build([partial(record, each) for each in planned])
    planned = [each for each in planned if each.asked]
    tried = {key: (each.call, tunable) for each in planned for key, tunable in each.asked.items()}
    device.build(
        [
            partial(run_with, device.prepare(call), key, settings)
            for key, (call, tunable) in tried.items()
            for settings in tunable.candidates[1:]
        ]
    )
    return planned


def has_known_sizes(call: KernelCall) -> bool:
    """Whether the data decides no size of a call's tensors."""
    forms = [arg for arg in call.args if isinstance(arg, TensorMeta)]
    return all(isinstance(size, int) for form in forms for size in (*form.shape, *form.strides))


def tune_kernel(run: Run, key: TunedKey, tunable: Tunable, device: TuningDevice) -> TunedKernel:
    """The fastest of a kernel's settings that give the default's bits."""
    with chosen(key, tunable.candidates[0]):
        wanted = run()
    sound = [
        settings
        for number, settings in enumerate(tunable.candidates)
        if number == 0 or has_same_results(run, key, settings, wanted)
    ]
    rounds = device.measure([partial(run_with, run, key, settings) for settings in sound])
    best, ratio = find_fastest(rounds)
    default_ms = median(times[0] for times in rounds)
    best_ms = default_ms * ratio
    log.info("%s: %s, %.4f ms, default %.4f ms", describe(key), describe_settings(sound[best]), best_ms, default_ms)
    return TunedKernel(key, sound[best], default_ms, best_ms)


def has_same_results(run: Run, key: TunedKey, settings: Settings, wanted: Any) -> bool:
    """Whether a candidate can be launched and computes the same bits."""
    try:
        found = run_with(run, key, settings)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (TritonError, RuntimeError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        log.info("%s with %s is skipped: %s", describe(key), describe_settings(settings), lines[-1][:200])
        return False
    if all(map(has_same_bits, to_tensors(wanted), to_tensors(found))):
        return True
    text = "%s with %s is discarded: its results differ from those of the default"
    log.warning(text, describe(key), describe_settings(settings))
    return False


def run_with(run: Run, key: TunedKey, settings: Settings) -> Any:
    """The results with other settings."""
    with chosen(key, settings):
        return run()


def to_tensors(results: Any) -> list[Tensor]:
    """The results of a call, one or several."""
    return list(results) if isinstance(results, tuple | list) else [results]


def has_same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit for bit: NaN equals NaN, and 0 is not -0."""
    is_alike = one.shape == other.shape and one.dtype == other.dtype
    return is_alike and torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def find_fastest(rounds: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Which run is fastest, and its part of the first one's time, compared within rounds: a GPU's clock drifts. The
    first unless another is faster by more than MARGIN."""
    ratios = [median(times[number] / times[0] for times in rounds) for number in range(len(rounds[0]))]
    best = min(range(len(ratios)), key=ratios.__getitem__)
    return (best, ratios[best]) if ratios[best] < 1 - MARGIN else (0, 1.0)


def describe(key: TunedKey) -> str:
    """A kernel and its sizes: `swiglu 16384 x 8192`."""
    return f"{key.kernel} {' x '.join(map(str, key.sizes))}"


def describe_settings(settings: Settings) -> str:
    """`group 8, num_warps 4`."""
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "default"

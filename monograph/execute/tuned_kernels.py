"""The tuned settings that a run launches its kernels with: from the cache of this kind of GPU, an artifact, or anew."""

from collections.abc import Iterable, Mapping

import torch

from monograph.execute.custom_kernels import KernelCall
from monograph.execute.tune_kernels import tune_calls
from monograph.execute.tuning_gpu import TuningGpu
from monograph.kernels.tuned_file import (
    GpuKind,
    TunedKernel,
    find_gpu_kind,
    parse_tuned,
    read_tuned,
    render_tuned,
    write_tuned,
)
from monograph.kernels.tuning import TunedKey, replace_choices, use_choices
from monograph.log import get_log
from monograph.plurals import counted

log = get_log("tune")
_loaded: dict[GpuKind, dict[TunedKey, TunedKernel]] = {}
"""What this process has read or found."""


def load_tuned_kernels(device: torch.device) -> Mapping[TunedKey, TunedKernel]:
    """Launch with what was tuned for this kind of GPU; its file is read once in a process."""
    kind = find_gpu_kind(device)
    if kind is None:
        return {}
    if kind not in _loaded:
        _loaded[kind] = read_tuned(kind)
        use_choices({key: each.settings for key, each in _loaded[kind].items()})
        if _loaded[kind]:
            log.info("kernels are launched with %d settings tuned for %s", len(_loaded[kind]), kind.name)
    return _loaded[kind]


def tune_kernels(calls: Iterable[KernelCall], device: torch.device) -> list[TunedKernel]:
    """Tune what is not known yet of these calls, launch with it from now on, and add it to the file of the GPU."""
    known = load_tuned_kernels(device)
    kind = find_gpu_kind(device)
    if kind is None:
        log.info("compile.tune_kernels: there is nothing to tune on %s", device.type)
        return []
    found = tune_calls(calls, TuningGpu(device), known)
    torch.cuda.empty_cache()
    _loaded[kind].update({each.key: each for each in found})
    if found:
        try:
            log.info("tuned %s: %s", counted(len(found), "kernel setting"), write_tuned(kind, found))
        except OSError as error:
            log.warning("tuned settings of kernels are not saved for later runs: %s", error)
    return found


def render_for_artifact(device: torch.device) -> bytes | None:
    """What an artifact takes along: all that is known of this kind of GPU; None where that is nothing."""
    kind, tuned = find_gpu_kind(device), load_tuned_kernels(device)
    return render_tuned(kind, tuned) if kind is not None and tuned else None


def use_from_artifact(content: bytes | None, device: torch.device) -> None:
    """Launch with the settings that an artifact's kernels were built with, which are defaults where it has none: then
    nothing is built at load. Settings for another kind of GPU are left aside; ValueError if they cannot be read."""
    made_for, tuned = parse_tuned(content) if content is not None else (None, {})
    kind = find_gpu_kind(device)
    if kind is None:
        return
    if made_for in (kind, None):
        _loaded[kind] = tuned
        replace_choices({key: each.settings for key, each in tuned.items()})
        return
    load_tuned_kernels(device)
    text = "the artifact's kernels were tuned for %s; %s launches them with settings of its own"
    log.info(text, describe_kind(made_for), describe_kind(kind))


def describe_kind(kind: GpuKind) -> str:
    """A kind of GPU in words."""
    return f"{kind.name} (Triton {kind.triton}, kernels {kind.source})"

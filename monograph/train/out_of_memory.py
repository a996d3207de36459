"""A device that has no room for the next tensor, in words: what holds its memory, by kind, and what was computed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from monograph.errors import MonographError
from monograph.report.units import format_bytes
from monograph.train.config import TrainerConfig
from monograph.train.optimizer import Optimizer
from monograph.train.optimizer_config import AdamWConfig
from monograph.train.step import Step

Holders = dict[str, Callable[[], Iterable[Tensor]]]
"""Kind of memory -> the tensors of that kind, asked for when memory has run out."""
_MARKS = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "Failed to CUDA calloc")
"""What allocators say that have no class of error of their own: CUDA's, the host's, cuBLAS's and cuDNN's, NCCL's."""
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+ (?:[KMGT]iB|bytes))")


class OutOfMemory(MonographError):
    """A device had no room for what was to be computed next."""


def find_holders(step: Step, optimizer: Optimizer | None = None) -> Holders:
    """What a training step and its optimizer keep from one micro-batch to the next."""
    cache = step.weight_cache
    return {
        "parameters": lambda: step.parameters.values(),
        "gradients": lambda: [each.grad for each in step.parameters.values() if each.grad is not None],
        "optimizer": lambda: optimizer.state().values() if optimizer is not None else (),
        "weights in the compute dtype": lambda: cache.buffers if cache is not None else (),
    }


@contextmanager
def memory_explained(device: torch.device, holders: Holders, *, do: str) -> Iterator[None]:
    """Say in words what an allocator's failure inside means, where it is not said yet."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        failure = find_allocation_failure(error)
        if failure is None:
            raise
        raise describe_failure(failure, device, holders, do=do) from error


def find_allocation_failure(error: BaseException | None) -> BaseException | None:
    """The allocator's error that an error is or came from: what cleans up after it may fail as well."""
    while error is not None:
        is_known = isinstance(error, RuntimeError) and any(mark in str(error) for mark in _MARKS)
        if is_known or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def describe_failure(error: BaseException, device: torch.device, holders: Holders, *, do: str) -> OutOfMemory:
    """The error for a person. It must still have its traceback: the frames hold what was being computed with."""
    tried = _TRIED.search(str(error))
    where = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    wanted = f"another {tried[1]}" if tried else "what comes next"
    parts = count_held(holders)
    if device.type == "cuda":
        parts |= _count_on_gpu(device, sum(parts.values()))
    held = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts.items() if size)
    return OutOfMemory(
        f"{device} has no room for {wanted}{where}", why=f"its memory holds {held}" if held else "", do=do
    )


def count_held(holders: Mapping[str, Callable[[], Iterable[Tensor]]]) -> dict[str, int]:
    """Bytes by kind; memory that several tensors share counts once, for the first of them."""
    seen: set[int] = set()
    found = {}
    for kind, find in holders.items():
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in find()}
        found[kind] = sum(size for place, size in storages.items() if place not in seen)
        seen |= storages.keys()
    return found


def _count_on_gpu(device: torch.device, known: int) -> dict[str, int]:
    """What the rest of a GPU's memory is for, as far as the allocator and the driver know."""
    used, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "activations and values in use": max(0, used - known),
        "fragments that the allocator cannot use": reserved - used,
        "contexts, communicators, recordings and other processes": max(0, total - free - reserved),
        "free": free,
    }


def suggest_less(config: TrainerConfig) -> str:
    """Flags with which a run needs less of a device's memory, those that change no number first."""
    flags = []
    if config.activation_checkpoint.resolve(config.compile) != "full":
        flags.append("--activation_checkpoint.mode full")
    if config.training.local_batch_size > 1:
        flags.append(f"--training.local_batch_size {config.training.local_batch_size // 2}")
    if config.parallelism.reshard_after_forward is False:
        flags.append("--parallelism.reshard_after_forward true")
    is_ours = isinstance(config.optimizer, AdamWConfig) and config.optimizer.implementation in ("auto", "single_pass")
    if is_ours and config.find_state_ratio() >= 2 and config.training.dtype == "float32":
        flags.append("--optimizer.state_dtype bfloat16")
    plan = "monograph plan with the same recipe and flags lists what fits on how many devices"
    return f"{' or '.join(flags)}; {plan}" if flags else plan

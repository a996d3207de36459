"""Inductor: its code for parts of a graph, its kernels and where it keeps them."""

import ctypes
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.autograd import DeviceType

from monograph.compat.compiled_code import CODE_FOLDER, keep_compiled_code_private
from monograph.compat.environment import variables_set

CompiledCode = Callable[..., Any]


def start_workers() -> None:
    """Start Inductor's processes that build kernels: they import torch themselves, which takes them seconds."""
    keep_compiled_code_private()
    importlib.import_module("torch._inductor.async_compile").maybe_warm_pool()


def add_decompositions(forms: Mapping[Any, Callable[..., Any]]) -> None:
    """Have Inductor replace ops by what these functions do. It copies its table once, so both get them."""
    known: Any = importlib.import_module("torch._inductor.decomposition")
    for table in (known.decompositions, known.fast_random_decomps()):
        table.update(forms)


def compile_graph(module: fx.GraphModule, inputs: list[Any], mode: Any, *, for_artifact: bool) -> CompiledCode:
    """Inductor's code for a graph on values of these forms; sizes keep the symbols of the capture's mode.

    Code that is going to be saved comes with its kernels' best settings, measured; other code measures them when it
    first runs. Where torch is asked for deterministic kernels nothing is measured: the fastest differs from run to run.
    Inductor and the tracing context are reached through torch's attributes: eager runs never import them.
    """
    keep_compiled_code_private()
    guards = torch._guards
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    settings = {"triton.autotune_at_compile_time": for_artifact, "deterministic": is_deterministic}
    if for_artifact and torch.cuda.is_available():
        importlib.import_module("torch._inductor.async_compile").AsyncCompile.wait_pool_ready()
    with guards.tracing(guards.TracingContext(mode)):
        return torch._inductor.standalone_compile(
            module, inputs, dynamic_shapes="from_tracing_context", options={"config_patches": settings}
        )


@contextmanager
def kernels_built_together(*, wanted: bool) -> Iterator[None]:
    """Inside, code is written without waiting for its kernels, which workers build meanwhile; all are there at the end.

    Workers that are not there yet find their work waiting for them: torch would do it itself, one kernel after another.
    Not for code that is saved: what is not there yet would be missing in the file.
    """
    if not wanted:
        yield
        return
    kind: Any = importlib.import_module("torch._inductor.async_compile").AsyncCompile
    honest, waiting, has_workers = kind.wait, [], kind.use_process_pool

    def use_process_pool() -> bool:
        return has_workers() or kind._ready_future is not None

    with (
        mock.patch.object(kind, "wait", lambda owner, scope: waiting.append((owner, scope))),
        mock.patch.object(kind, "use_process_pool", staticmethod(use_process_pool)),
    ):
        yield
    for owner, scope in waiting:
        honest(owner, scope)


class KernelMissing(Exception):
    """Loaded code asks for a kernel that was not brought along."""


@contextmanager
def compiler_folder(folder: Path, *, is_complete: bool = False) -> Iterator[None]:
    """Inductor and Triton keep what they make in this folder, and find there only what is in it.

    Headers are not compiled ahead: that would change the names under which kernels are found again. With `is_complete`
    no C++ kernel is built: one that is missing is an error, not a minute of waiting.
    """
    inductor = torch._inductor
    folders = {CODE_FOLDER: str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}

    def refuse(builder: Any) -> None:
        raise KernelMissing(f"there is no {Path(builder.get_target_file_path()).name}")

    builders = mock.patch.object(inductor.cpp_builder.CppBuilder, "build", refuse)
    inductor.utils.clear_caches()
    if not is_complete:
        forget_processor()
    try:
        with variables_set(folders), inductor.config.patch(cpp_cache_precompile_headers=False):
            if is_complete:
                with builders:
                    yield
            else:
                yield
    finally:
        inductor.utils.clear_caches()


def forget_processor() -> None:
    """Let Inductor find out anew what the processor can do: the little programs it asks with belong to its kernels."""
    kinds = torch._inductor.cpu_vec_isa
    for found in (getattr(kinds.VecISA, "_VecISA__bool__impl", None), kinds.valid_vec_isa_list, kinds.pick_vec_isa):
        forget = getattr(found, "cache_clear", None)
        if forget is not None:
            forget()


def save_compiled(code: Any, path: Path) -> None:
    """Write what `compile_graph` made."""
    code.save(path=str(path), format="binary")


def load_compiled(path: Path) -> CompiledCode:
    """Code that `save_compiled` wrote. The file is code, and is run: check where it comes from before."""
    return torch._inductor.CompiledArtifact.load(path=str(path), format="binary")


def find_kernels(found: Any) -> list[tuple[int, str, float]]:
    """What a profile saw on a GPU: the number of the op that launched it, its name, its microseconds.

    torch's own events list a kernel again under every call whose number happens to be that of its op.
    """
    kernels = [event for event in found.profiler.kineto_results.events() if event.device_type() == DeviceType.CUDA]
    return [(event.linked_correlation_id(), event.name(), event.duration_ns() / 1000) for event in kernels]


def find_cuda_driver() -> str:
    """The driver's class: the newest CUDA it serves, which is what decides whether kernels load. torch does not say."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return str(version.value)

"""The device of a run, and how its kernels behave."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils.deterministic as deterministic

from monograph.compat.ops import has_native_matmul
from monograph.errors import ConfigError
from monograph.log import get_log

log = get_log("run")
DEVICES = Path("/dev")


def find_device(wanted: str) -> torch.device:
    """Choose the device of this process without using it yet.

    Asking for a GPU that is not there is an error, not a slow run.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("debug.device is cuda", why="torch sees no CUDA device here", do="--debug.device cpu")
    is_for_gpus = torch.version.cuda is not None and not torch.cuda.is_available()
    if wanted == "auto" and is_for_gpus and (gpus := find_hidden_gpus()):
        raise ConfigError(
            f"this machine has {', '.join(gpus)}, and torch cannot use it",
            why=f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, and the driver does not answer",
            do="repair the driver (nvidia-smi says what is wrong), or --debug.device cpu",
        )
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def use_device(wanted: str) -> torch.device:
    """Choose the device of this process and make it torch's current one, which whatever takes no device argument uses.

    That makes a context on a GPU: a process that only starts others must not call it.
    """
    device = find_device(wanted)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def find_hidden_gpus() -> list[str]:
    """The GPUs that this process was given, by the names of their files, whether or not torch can use them."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return []
    return sorted(str(path) for path in DEVICES.glob("nvidia[0-9]*"))


def check_recordable(cuda_graph: str, device: torch.device) -> None:
    """Refuse a CUDA graph that is required where there is no GPU, before a step is captured."""
    if cuda_graph == "require" and device.type != "cuda":
        raise ConfigError(
            "compile.cuda_graph is require",
            why=f"CUDA graphs are recorded on a GPU, and this run is on the {device.type}",
            do="--compile.cuda_graph auto",
        )


_ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""torch reads the first since 2.9; the second is its old name."""


def check_allocator(device: torch.device, ranks: int) -> None:
    """Refuse CUDA graphs of collectives in memory that NCCL cannot register: they crash or hang (torch 158029)."""
    if device.type != "cuda" or ranks == 1 or os.environ.get("NCCL_GRAPH_REGISTER") == "0":
        return
    for name in _ALLOCATOR_VARIABLES:
        settings = dict(each.partition(":")[::2] for each in os.environ.get(name, "").replace(" ", "").split(","))
        if settings.get("expandable_segments", "").lower() == "true":
            raise ConfigError(
                f"{name} has expandable_segments:True, and steps are recorded as CUDA graphs over {ranks} ranks",
                why="NCCL registers the buffers of recorded collectives, and those of expandable segments crash or "
                "hang it",
                do="set NCCL_GRAPH_REGISTER=0 on every node, or --compile.cuda_graph off, or expandable_segments:False",
            )


def warn_of_slow_matmuls(device: torch.device, dtype: torch.dtype) -> None:
    """Say in words what torch says later, with the stack of its C++: a step that takes minutes looks like a hang."""
    if has_native_matmul(device, dtype):
        return
    log.warning(
        "this CPU has no native %s matmul: steps may take a hundred times as long as with "
        "--training.compute_dtype float32",
        str(dtype).removeprefix("torch."),
    )
    warnings.filterwarnings("ignore", "mkldnn_matmul failed.*needs a cpu with bf16 support", UserWarning)


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Only deterministic kernels inside; every setting is put back afterwards."""
    if not wanted:
        yield
        return
    fill: Any = deterministic  # its attributes are set at run time, unknown to type checkers
    before = torch.are_deterministic_algorithms_enabled(), fill.fill_uninitialized_memory
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace or ":4096:8"
    torch.use_deterministic_algorithms(True)
    fill.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        fill.fill_uninitialized_memory = before[1]
        if workspace is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]

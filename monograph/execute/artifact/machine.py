"""What code is made with and made for: versions, settings of the environment, the processor. Loads without torch.

Only what can change an artifact's content or its numbers is listed; where files lie and how many processes compile is
not.
"""

import hashlib
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from monograph import __version__
from monograph.passes.extra import hash_sources

_PACKAGE = Path(__file__).parent.parent.parent
_SHAPING = (
    "annotate.py",
    "axes.py",
    "machine",
    "compat",
    "run.py",
    "models",
    "parallel",
    "graph",
    "capture",
    "passes",
    "execute",
)
"""The parts of this package whose code decides what a step's graph is."""
_SETTINGS = ("TORCHINDUCTOR_", "TRITON_", "TORCH_COMPILE", "ATEN_CPU_CAPABILITY", "NVIDIA_TF32", "TORCH_ALLOW_TF32")
_PLACES = ("_DIR", "_THREADS", "_HOME", "_LOG_LEVEL")
"""Endings of settings that say where or how fast, and not what."""
_FEATURES = (
    *("avx2", "fma", "avx512f", "avx512dq", "avx512vl", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16"),
)
"""What a processor can do that compiled code makes use of."""


def find_versions(extra: Sequence[Any] = ()) -> dict[str, str]:
    """Of everything that makes graphs and code; of the passes in `extra` a digest of their source."""
    return {
        "monograph": __version__,
        "source": hash_source(),
        "python": platform.python_version().rpartition(".")[0],
        "torch": _find_version("torch"),
        "triton": _find_version("triton"),
        **{f"pass {reference}": digest for reference, digest in hash_sources(extra).items()},
    }


def find_environment() -> dict[str, str]:
    """The settings that compilers read."""
    chosen = [name for name in os.environ if name.startswith(_SETTINGS) and not name.endswith(_PLACES)]
    return {name: os.environ[name] for name in sorted(chosen)}


def find_processor() -> str:
    """The kind of processor and what it can do, as far as compiled code cares."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "").split()
    except OSError:
        flags = []
    return " ".join([platform.machine(), *(feature for feature in _FEATURES if feature in flags)])


@cache
def hash_source() -> str:
    """A digest of the code that makes graphs: an artifact of older code would train another step."""
    digest = hashlib.sha256()
    for part in _SHAPING:
        path = _PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(_PACKAGE)}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def describe_here(extra: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
    """The sections of a manifest that can be filled without torch; `extra` are the passes in passes.extra."""
    return {"versions": find_versions(extra), "environment": find_environment()}


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

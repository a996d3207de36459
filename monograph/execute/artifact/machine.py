"""What code is made with and made for: versions, settings of the environment, the processor. Loads without torch.

Only what can change an artifact's content or its numbers is listed; where files lie and how many processes compile is
not.
"""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from monograph import __version__
from monograph.config.sources import hash_sources
from monograph.passes.extra import is_pass

_PACKAGE = Path(__file__).parent.parent.parent
APART: Mapping[str, str] = {
    **dict.fromkeys(
        ("__main__.py", "cli.py", "commands", "api.py", "recipes"), "make a configuration, which is compared"
    ),
    **dict.fromkeys(("bench.py", "bisect", "checks", "verify", "report", "watch", "plan"), "look at steps"),
    **dict.fromkeys(("generate", "launch", "crash.py", "log.py"), "run before or after training, or around it"),
    **dict.fromkeys(("errors.py", "renamed.py"), "say what is wrong"),
    **dict.fromkeys(
        (
            *("system", "locks", "permissions.py", "private_temporary.py"),
            *("manifest", "strict_json.py", "line_file.py", "whole_file.py"),
        ),
        "files",
    ),
    **dict.fromkeys(("train",), "what happens between steps; see _IN_TRAINING"),
}
"""Parts of this package -> why their code cannot change a step's graph, or the code of its kernels. All others may."""
_IN_TRAINING = ("train/config.py", "train/optimizer_config.py", "train/step_settings.py")
"""What of `train` decides how a step computes."""
_SETTINGS = ("TORCHINDUCTOR_", "TRITON_", "TORCH_COMPILE", "ATEN_CPU_CAPABILITY", "NVIDIA_TF32", "TORCH_ALLOW_TF32")
_PLACES = ("_DIR", "_THREADS", "_HOME", "_LOG_LEVEL")
"""Endings of settings that say where or how fast, and not what."""
_FEATURES = (
    *("avx2", "fma", "avx512f", "avx512dq", "avx512vl", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "amx_bf16", "amx_int8", "asimd", "sve", "sve2", "bf16"),
)
"""What a processor can do that compiled code makes use of."""


def find_versions(extra: Sequence[Any] = ()) -> dict[str, str]:
    """Of everything that makes graphs and code; of a user's code in `extra` a digest of its source."""
    return {
        "monograph": __version__,
        "source": hash_source(),
        "python": platform.python_version().rpartition(".")[0],
        "torch": _find_version("torch"),
        "triton": _find_version("triton"),
        **{
            f"{'pass' if is_pass(each) else 'code'} {reference}": digest
            for each in extra
            for reference, digest in hash_sources([each]).items()
        },
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
    """A digest of the code that makes graphs and kernels: an artifact of older code would train another step."""
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        name = file.relative_to(_PACKAGE).as_posix()
        if is_shaping(name):
            digest.update(f"{name}\n".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def is_shaping(name: str) -> bool:
    """Whether a file of this package, by its path in it, may change a step's graph or the code of its kernels."""
    return name in _IN_TRAINING or name.split("/")[0] not in APART


def describe_here(extra: Sequence[Any] = ()) -> dict[str, dict[str, Any]]:
    """The sections of a manifest that can be filled without torch; `extra` is what a user wrote."""
    return {"versions": find_versions(extra), "environment": find_environment()}


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

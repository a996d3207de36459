"""GPUs by their device files, which are there or not whatever torch is built for. Loads without torch."""

from pathlib import Path

from monograph.errors import ConfigError

DEVICES = Path("/dev")
GPU_FILES = ("nvidia*", "nvhost*", "nvgpu*", "kfd", "dxg")
"""Of NVIDIA drivers (also on Jetson), of ROCm, and of Windows' Linux."""


def has_gpu_files() -> bool:
    """Whether the system has the device file of a GPU; True where devices have no files."""
    return not DEVICES.is_dir() or any(path for ending in GPU_FILES for path in DEVICES.glob(ending))


def check_gpu_files(wanted: str, *, name: str = "debug.device") -> None:
    """Refuse to run on GPUs where the system has none, without the seconds that torch takes to say so."""
    if wanted == "cuda" and not has_gpu_files():
        raise ConfigError(
            f"{name} is cuda",
            why=f"no CUDA device here: {DEVICES} has no file of a GPU ({', '.join(GPU_FILES)})",
            do=f"--{name} cpu",
        )

"""Writing safetensors files piece by piece.

The header of such a file needs only names, types and shapes, so it can be written before any data is at hand. Tensors
then follow one after the other, each in as many pieces as its source likes: nothing is ever held twice, and the hash is
made on the way. Reading is left to the safetensors library, which maps the file and copies only what is asked for.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from monograph.errors import CheckpointError
from monograph.manifest.fields import FileRecord
from monograph.train.checkpoint.disk import Disk, DurableFile, hash_file
from monograph.train.checkpoint.manifest import DTYPES

FILE_DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_FILE_NAMES = {dtype: name for name, dtype in FILE_DTYPES.items()}
_ALIGN_BYTES = 8


@dataclass(frozen=True)
class TensorSpec:
    """What a file's header says of one tensor."""

    key: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def name_dtype(dtype: torch.dtype, tensor: str) -> str:
    """torch's own name of an element type, for the manifest; an error for one no file can hold."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise CheckpointError(
            f"{tensor} cannot be saved", why=f"its dtype is {name}; files hold {', '.join(sorted(DTYPES))}"
        )
    return name


def find_dtype(name: str) -> torch.dtype:
    """The element type of that name; the manifest has already checked that it is one."""
    return getattr(torch, name)


def write_tensor_file(
    disk: Disk,
    path: Path,
    specs: Sequence[TensorSpec],
    read: Callable[[TensorSpec], Iterable[torch.Tensor]],
    *,
    metadata: Mapping[str, str] | None = None,
) -> FileRecord:
    """Write the tensors of `specs`; `read` yields each one's elements in order, in pieces of any shape.

    The file is synced and read back before its record is returned: what a record says has been on the disk.
    """
    ordered = sorted(specs, key=lambda spec: (-spec.dtype.itemsize, spec.key))  # keeps every tensor aligned
    with DurableFile(disk, path) as file:
        file.write(_render_header(ordered, metadata))
        for spec in ordered:
            before = file.size
            for piece in read(spec):
                file.write(view_bytes(piece))
            if file.size - before != spec.num_bytes:
                raise AssertionError(f"{spec.key} is {spec.num_bytes} bytes, but {file.size - before} were written")
        record = FileRecord(file.size, file.finish())
    if hash_file(path) != (record.size, record.sha256):
        raise OSError(f"{path.name} reads back differently from what was written")
    return record


def view_bytes(tensor: torch.Tensor) -> memoryview:
    """The elements as bytes, copied only where they lie scattered or on a device."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def split_files(specs: Iterable[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Share the tensors out over files of at most `max_bytes` (one tensor is never split), keeping their order."""
    files: list[list[TensorSpec]] = []
    free = 0
    for spec in specs:
        if not files or spec.num_bytes > free:
            files.append([])
            free = max_bytes
        files[-1].append(spec)
        free -= spec.num_bytes
    return files


def read_specs(path: Path) -> dict[str, TensorSpec]:
    """What the header of a file says, by key; raises SafetensorError for one that is not well formed."""
    if not path.is_file() and path.exists():  # opening a FIFO would wait for a writer, for ever
        raise SafetensorError("it is not a regular file")
    with safe_open(path, framework="pt") as file:
        return {key: _read_spec(file, key) for key in file.keys()}  # noqa: SIM118  (not a dict)


def _read_spec(file: safe_open, key: str) -> TensorSpec:
    entry = file.get_slice(key)
    name = entry.get_dtype()
    if name not in FILE_DTYPES:
        raise SafetensorError(f"the dtype of {key} is {name}, which is not known")
    return TensorSpec(key, FILE_DTYPES[name], tuple(entry.get_shape()))


def _render_header(specs: Sequence[TensorSpec], metadata: Mapping[str, str] | None) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    for spec, (start, end) in zip(specs, _find_ranges(specs), strict=True):
        header[spec.key] = {"dtype": _FILE_NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % _ALIGN_BYTES)
    return len(text).to_bytes(8, "little") + text


def _find_ranges(specs: Sequence[TensorSpec]) -> Iterator[tuple[int, int]]:
    start = 0
    for spec in specs:
        yield start, start + spec.num_bytes
        start += spec.num_bytes

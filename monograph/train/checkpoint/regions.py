"""Reading any part of any tensor of a checkpoint, whichever ranks wrote it, without loading the rest."""

from pathlib import Path

import torch
from safetensors import safe_open

from monograph.train.checkpoint.manifest import CheckpointManifest, Chunk
from monograph.train.checkpoint.reader import read_box
from monograph.train.checkpoint.tensor_file import find_dtype


class RegionReader:
    """The tensors of a verified checkpoint as whole tensors, read box by box."""

    def __init__(self, path: Path, manifest: CheckpointManifest) -> None:
        self._path = path
        self._manifest = manifest
        self._files: dict[str, safe_open] = {}

    def read(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        """The box of that corner and size, put together from the stored chunks it touches."""
        record = self._manifest.tensors[name]
        region = torch.empty(sizes, dtype=find_dtype(record.dtype))
        for chunk in record.chunks:
            start = tuple(map(max, offsets, chunk.offsets))
            end = tuple(
                min(a + m, b + n) for a, m, b, n in zip(offsets, sizes, chunk.offsets, chunk.sizes, strict=True)
            )
            if all(low < high for low, high in zip(start, end, strict=True)):
                window = tuple(slice(low - a, high - a) for low, high, a in zip(start, end, offsets, strict=True))
                region[window] = self._read_chunk(chunk, start, end)
        return region

    def _read_chunk(self, chunk: Chunk, start: tuple[int, ...], end: tuple[int, ...]) -> torch.Tensor:
        if chunk.file not in self._files:
            self._files[chunk.file] = safe_open(self._path / chunk.file, framework="pt")
        corner = tuple(low - own for low, own in zip(start, chunk.offsets, strict=True))
        sizes = tuple(high - low for low, high in zip(start, end, strict=True))
        return read_box(self._files[chunk.file], chunk, corner, sizes)

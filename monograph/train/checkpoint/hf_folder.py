"""A Hugging Face model folder, opened without reading its tensors, and whether its weights can be used as stored."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from monograph.errors import CheckpointError
from monograph.models.hf_fp8 import FP8_DTYPE, SCALE_SUFFIX, Stored, find_bad_scales, find_problem
from monograph.models.hf_mxfp4 import BLOCKS, SCALES, describe_packed, find_packed, read_packed
from monograph.models.hf_quantization import find_unconverted, is_listed
from monograph.models.hf_tensors import Box
from monograph.system.foreign_text import show
from monograph.train.checkpoint.hf_assets import CONFIG_NAME
from monograph.train.checkpoint.hf_files import INDEX_NAME, find_weight_files
from monograph.train.checkpoint.model_source import read_json
from monograph.train.checkpoint.tensor_file import TensorSpec, read_specs
from monograph.train.checkpoint.verify import list_some

_PIECES, _PIECE_BYTES = 16, 4096
"""Of each file, how much is looked at to tell it from another: other training changes every piece of a model."""
_COMPARED_BYTES = 64 << 20
"""How much of two copies of a tensor is read at once."""


class HfFolder(Mapping[str, torch.Tensor]):
    """Names to tensors; each tensor is read from its file when it is asked for, and nothing is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = read_json(path / CONFIG_NAME)
        self.specs: dict[str, TensorSpec] = {}
        self._file_of: dict[str, str] = {}
        self._files: dict[str, safe_open] = {}
        self._stored_names: dict[str, str] = {}
        files = find_weight_files(path)
        for name in files.names:
            specs = self._read_file(name)
            self._check_copies(specs, name)
            if absent := sorted(key for key, file in files.index.items() if file == name and key not in specs):
                raise CheckpointError(
                    f"{path / INDEX_NAME} does not describe the files beside it",
                    why=list_some(f"not in {name}, which it names", map(show, absent)),
                    do="download the folder again",
                )
            self.specs |= specs
            self._file_of |= dict.fromkeys(specs, name)
        self._packed = self._find_packed()

    def __getitem__(self, name: str) -> torch.Tensor:
        stored = self._stored_names.get(name, name)
        return self._read_packed(stored) if stored in self._packed else self._read(stored)

    def read_box(self, name: str, box: Box) -> torch.Tensor:
        """Part of a tensor, at most up to its end: nothing else is read, but whole experts where values are packed."""
        stored = self._stored_names.get(name, name)
        sizes = self.specs[name].shape
        box = tuple(slice(each.start, min(each.stop, size)) for each, size in zip(box, sizes, strict=True))
        if stored not in self._packed:
            return self._read(stored, box)
        return self._read_packed(stored, box[:1])[(slice(None), *box[1:])]

    def _read(self, name: str, box: Box = ()) -> torch.Tensor:
        file = self._open(self._file_of[name])
        return file.get_slice(name)[box] if box else file.get_tensor(name)

    def _open(self, file: str) -> safe_open:
        if file not in self._files:
            self._files[file] = safe_open(self.path / file, framework="pt")
        return self._files[file]

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def digest(self) -> str:
        """What tells these weights from others of the same model, from a part of every file."""
        found = hashlib.sha256(repr(sorted(self.config.items(), key=lambda entry: entry[0])).encode())
        for name in sorted(set(self._file_of.values())):
            path = self.path / name
            size = path.stat().st_size
            found.update(f"{name} {size}\n".encode())
            with path.open("rb") as file:
                for number in range(_PIECES):
                    file.seek(number * max(0, size - _PIECE_BYTES) // (_PIECES - 1))
                    found.update(file.read(_PIECE_BYTES))
        return found.hexdigest()

    def remove_prefix(self, prefix: str) -> None:
        """Call tensors by the rest of their names, where these begin with `prefix`."""
        named = {name: name.removeprefix(prefix) for name in self.specs}
        self._stored_names = {short: name for name, short in named.items()}
        if twice := sorted(name for name, short in named.items() if self._stored_names[short] != name):
            short = named[twice[0]]
            raise CheckpointError(
                f"{self.path} holds two tensors for {show(short)}",
                why=f"{show(twice[0])} and {show(self._stored_names[short])}",
                do="download the folder again",
            )
        self.specs = {short: self.specs[name] for name, short in named.items()}

    def _find_packed(self) -> frozenset[str]:
        """MXFP4 weights, which take the place of their blocks and scales: they are read like any other tensor."""
        quantization = self.config.get("quantization_config")
        if not isinstance(quantization, dict) or quantization.get("quant_method") != "mxfp4":
            return frozenset()
        found: dict[str, TensorSpec] = {}
        problems = []
        names = find_packed(self.specs)
        for name in names:
            parts = [self.specs.pop(name + suffix, None) for suffix in (BLOCKS, SCALES)]
            weight = describe_packed(
                name, *(None if each is None else Stored(each.dtype, each.shape) for each in parts)
            )
            if isinstance(weight, str):
                problems.append(weight)
            else:
                found[name] = TensorSpec(name, weight.dtype, weight.shape)
        if problems:
            raise _cannot_use(self.path, problems)
        self.specs |= found
        return frozenset(names)

    def _read_packed(self, name: str, box: Box = ()) -> torch.Tensor:
        parts = {name + suffix: self._read(name + suffix, box) for suffix in (BLOCKS, SCALES)}
        found = read_packed(parts, name)
        if isinstance(found, str):
            raise _cannot_use(self.path, [found])
        return found

    def _check_copies(self, specs: Mapping[str, TensorSpec], file: str) -> None:
        """Refuse a tensor of an earlier file that this one has too, with other values."""
        for name in sorted(specs.keys() & self.specs.keys()):
            earlier = self._file_of[name]
            if not self._is_equal((earlier, self.specs[name]), (file, specs[name])):
                raise CheckpointError(
                    f"{self.path} holds {show(name)} twice: {earlier} and {file}",
                    why="the two differ, and nothing says which one the model was trained to",
                    do="download the folder again",
                )

    def is_equal(self, left: str, right: str) -> bool:
        """Whether two tensors of the folder agree in type, shape and every bit; read a piece at a time."""
        first, second = (self._stored_names.get(name, name) for name in (left, right))
        return self._is_equal((self._file_of[first], self.specs[left]), (self._file_of[second], self.specs[right]))

    def _is_equal(self, left: tuple[str, TensorSpec], right: tuple[str, TensorSpec]) -> bool:
        (file, spec), (other_file, other) = left, right
        if (spec.dtype, spec.shape) != (other.dtype, other.shape):
            return False
        first, second = self._open(file), self._open(other_file)
        if not spec.shape:
            return _bits(first.get_tensor(spec.key)).equal(_bits(second.get_tensor(other.key)))
        rows = max(1, _COMPARED_BYTES * spec.shape[0] // max(1, spec.num_bytes))
        pieces = (slice(start, start + rows) for start in range(0, spec.shape[0], rows))
        return all(
            _bits(first.get_slice(spec.key)[piece]).equal(_bits(second.get_slice(other.key)[piece])) for piece in pieces
        )

    def _read_file(self, name: str) -> dict[str, TensorSpec]:
        try:
            return read_specs(self.path / name)
        except (OSError, MemoryError, SafetensorError) as error:  # no room to map a file that claims to be huge
            raise CheckpointError(
                f"{self.path / name} cannot be read", why=str(error), do="download the folder again"
            ) from None


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def check_fp8(folder: HfFolder, needed: Sequence[str]) -> None:
    """Refuse weights of other types than those we read, and fp8 weights whose scales are missing or cannot be right.

    Scales are read here, a tensor at a time: they are 1/16384 of the weights.
    """
    quantization = folder.config.get("quantization_config")
    unconverted = find_unconverted(quantization)
    problems = []
    for name in needed:
        weight, scale = folder.specs[name], folder.specs.get(name + SCALE_SUFFIX)
        problem = find_problem(
            name, Stored(weight.dtype, weight.shape), Stored(scale.dtype, scale.shape) if scale else None
        )
        if not problem and weight.dtype == FP8_DTYPE:
            if not quantization:
                problem = f"{name} is stored in fp8, but {CONFIG_NAME} has no quantization_config"
            elif is_listed(name, unconverted):
                problem = f"{name} is stored in fp8, but modules_to_not_convert lists its module"
            else:
                problem = find_bad_scales(name, folder[name + SCALE_SUFFIX])
        if problem:
            problems.append(problem)
    if problems:
        raise _cannot_use(folder.path, problems)


def _cannot_use(path: Path, problems: Sequence[str]) -> CheckpointError:
    return CheckpointError(
        f"the weights in {path} cannot be used as they are stored",
        why=list_some("different", problems),
        do="download the folder again, or use a checkpoint in bfloat16",
    )

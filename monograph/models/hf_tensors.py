"""The values of our tensors and of theirs, as the entries of a family's map say."""

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from monograph.errors import CheckpointError
from monograph.models.hf_fp8 import SCALE_SUFFIX, Stored, find_bad_scales, find_problem, scale_blocks
from monograph.models.hf_map import Entry
from monograph.models.hf_mxfp4 import BLOCKS, read_packed
from monograph.models.hf_quantization import SCALE_BLOCK

Box = tuple[slice, ...]
"""Part of a tensor: where it starts and stops along each dim."""


class TensorFolder(Protocol):
    """Tensors by name, of which parts can be read."""

    def __contains__(self, name: object, /) -> bool: ...
    def read_box(self, name: str, box: Box) -> Tensor: ...


def read_theirs(source: Mapping[str, Tensor], name: str) -> Tensor:
    """One tensor of their checkpoint; fp8 weights with block scales and MXFP4 weights come back in bf16."""
    if name not in source and name + BLOCKS in source:
        found = read_packed(source, name)
        if isinstance(found, str):
            raise _cannot_tell(found)
        return found
    if name not in source:
        raise CheckpointError(
            f"the checkpoint has no tensor '{name}'", why="the model its config.json describes needs it"
        )
    return _unscale(name, source[name], source.get(name + SCALE_SUFFIX))


def read_part_of_theirs(folder: TensorFolder, name: str, box: Box) -> Tensor:
    """Part of one tensor of a folder that has been checked, as `read_theirs` has it; fp8 weights by whole blocks."""
    if name + SCALE_SUFFIX not in folder:
        return folder.read_box(name, box)
    blocks = tuple(slice(each.start // SCALE_BLOCK, -(-each.stop // SCALE_BLOCK)) for each in box)
    widened = tuple(slice(each.start * SCALE_BLOCK, each.stop * SCALE_BLOCK) for each in blocks)
    whole = _unscale(name, folder.read_box(name, widened), folder.read_box(name + SCALE_SUFFIX, blocks))
    starts = (wide.start for wide in widened)
    return whole[tuple(slice(each.start - start, each.stop - start) for each, start in zip(box, starts, strict=True))]


def _unscale(name: str, tensor: Tensor, scales: Tensor | None) -> Tensor:
    described = None if scales is None else Stored(scales.dtype, tuple(scales.shape))
    problem = find_problem(name, Stored(tensor.dtype, tuple(tensor.shape)), described)
    if scales is not None and not problem:
        problem = find_bad_scales(name, scales)
    if problem:
        raise _cannot_tell(problem)
    return tensor if scales is None else scale_blocks(tensor, scales).to(torch.bfloat16)


def _cannot_tell(problem: str) -> CheckpointError:
    return CheckpointError(
        problem,
        why="the weights that were trained cannot be told from what is stored",
        do="download the folder again, or use a checkpoint in bfloat16",
    )


def join(entry: Entry, tensors: Iterable[Tensor]) -> Tensor:
    """Our tensor, from theirs in the entry's order."""
    parts = list(tensors)
    whole = torch.stack(parts) if entry.stacked else parts[0]
    return whole.unflatten(-1, entry.unflatten) if entry.unflatten else whole


def split(entry: Entry, tensor: Tensor) -> dict[str, Tensor]:
    """Their tensors, by name, as views of ours."""
    whole = tensor.flatten(-len(entry.unflatten)) if entry.unflatten else tensor
    return dict(zip(entry.theirs, whole.unbind() if entry.stacked else (whole,), strict=True))


def import_tensors(entries: Iterable[Entry], source: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of ours, from a checkpoint that fits in memory."""
    return {entry.ours: join(entry, (read_theirs(source, name) for name in entry.theirs)) for entry in entries}


def export_tensors(entries: Iterable[Entry], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All of theirs, from a model that fits in memory."""
    return {name: part for entry in entries for name, part in split(entry, state[entry.ours]).items()}

"""The weights of a Hugging Face folder as our tensors: checked by name and shape, then read one at a time."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from monograph.config.configurable import check_config
from monograph.errors import CheckpointError
from monograph.models.hf_families import find_family
from monograph.models.hf_fp8 import FP8_DTYPE, SCALE_SUFFIX
from monograph.models.hf_map import TIED, Entry
from monograph.models.hf_tensors import Box, read_part_of_theirs, read_theirs
from monograph.models.model_config import ModelConfig
from monograph.system.foreign_text import show
from monograph.train.checkpoint.finite import check_finite
from monograph.train.checkpoint.hf_assets import CONFIG_NAME
from monograph.train.checkpoint.hf_folder import HfFolder, check_fp8
from monograph.train.checkpoint.manifest import Chunk, TensorRecord
from monograph.train.checkpoint.tensor_file import TensorSpec, name_dtype
from monograph.train.checkpoint.verify import MODEL_PREFIX, list_some


@dataclass(frozen=True)
class TensorOfModel:
    """One tensor as our model has it."""

    shape: tuple[int, ...]
    is_buffer: bool
    """Buffers keep the type they are stored in; a cast is for weights."""


class HfWeights:
    """The tensors of a folder under our names. Everything is checked when it is opened; nothing is kept in memory."""

    def __init__(self, source: Path, *, dtype: torch.dtype | None = None) -> None:
        self.folder = HfFolder(source)
        family = find_family(self.folder.config.get("model_type"), source / CONFIG_NAME)
        find_prefix = getattr(family, "find_prefix", None)
        if find_prefix is not None:
            self.folder.remove_prefix(find_prefix(self.folder.config))
        self.config = family.from_hf_config(self.folder.config)
        check_config(self.config)
        entries = family.entries(self.config)
        check_names(self.folder, entries, [name for name in self.folder if family.is_ignored(self.config, name)])
        ours = describe_model(self.config, entries)
        check_shapes(self.folder, entries, ours)
        check_tied(self.folder, self.config)
        check_fp8(self.folder, [name for entry in entries for name in entry.theirs])
        self.specs = [plan_ours(self.folder, entry, ours[entry.ours], dtype) for entry in entries]
        """What each tensor of ours is, in the type it is stored in unless `dtype` was given."""
        self._entries = {MODEL_PREFIX + entry.ours: entry for entry in entries}
        self._buffers = {MODEL_PREFIX + name for name, tensor in ours.items() if tensor.is_buffer}

    def read(self, spec: TensorSpec) -> Iterator[torch.Tensor]:
        """A tensor of ours, piece by piece along its first dim where theirs are stacked; NaN and inf are refused."""
        for number in range(len(self._entries[spec.key].theirs)):
            piece = self.read_piece(spec.key, number)
            self.check_finite(piece, spec.key, number, spec.dtype)
            yield piece.to(spec.dtype)

    def check_finite(self, piece: torch.Tensor, key: str, number: int, dtype: torch.dtype) -> None:
        """Refuse part of a tensor of theirs that is not finite, or will not be in `dtype`."""
        name = self._entries[key].theirs[number]
        check_finite(piece, name, self.folder.path, dtype, may_be_infinite=key in self._buffers)

    def read_piece(self, key: str, number: int) -> torch.Tensor:
        """One of the tensors of theirs that make up a tensor of ours."""
        entry = self._entries[key]
        found = read_theirs(self.folder, entry.theirs[number])
        return found.unflatten(-1, entry.unflatten) if entry.unflatten else found

    def read_box(self, key: str, number: int, box: Box) -> torch.Tensor:
        """Part of a tensor of ours that lies in one of theirs; of a stack, `box` begins with the one it is of."""
        entry = self._entries[key]
        inner = box[1:] if entry.stacked else box
        split = len(inner) - len(entry.unflatten)
        lead = (*inner[:split], slice(0, math.prod(entry.unflatten))) if entry.unflatten else inner
        found = read_part_of_theirs(self.folder, entry.theirs[number], lead)
        if entry.unflatten:
            found = found.unflatten(-1, entry.unflatten)[(..., *inner[split:])]
        return found.unsqueeze(0) if entry.stacked else found

    def records(self) -> dict[str, TensorRecord]:
        """The tensors as a checkpoint would list them: one chunk for every tensor of theirs."""
        return {
            spec.key: TensorRecord(name_dtype(spec.dtype, spec.key), spec.shape, self._chunks(spec))
            for spec in self.specs
        }

    def _chunks(self, spec: TensorSpec) -> tuple[Chunk, ...]:
        if not spec.num_bytes:
            return ()
        entry = self._entries[spec.key]
        if not entry.stacked:
            return (Chunk((0,) * len(spec.shape), spec.shape, "", spec.key),)
        rest = spec.shape[1:]
        return tuple(
            Chunk((number, *(0,) * len(rest)), (1, *rest), "", spec.key) for number in range(len(entry.theirs))
        )


def describe_model(config: ModelConfig, entries: Iterable[Entry]) -> dict[str, TensorOfModel]:
    """The shapes of our model, from building it without memory; the map must name each of its tensors."""
    with torch.device("meta"):
        model = config.build()
    parameters = dict(model.named_parameters())
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(parameters)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in aliases}
    mapped = {entry.ours for entry in entries}
    if mapped != set(state):
        difference = list_some("in only one of the model and its Hugging Face map", sorted(mapped ^ set(state)))
        raise CheckpointError(
            f"{type(config).__name__} cannot be converted to or from Hugging Face",
            why=difference,
            do="name every tensor in the family's hf.py",
        )
    return {name: TensorOfModel(tuple(tensor.shape), name not in parameters) for name, tensor in state.items()}


def check_names(folder: HfFolder, entries: Iterable[Entry], ignored: Iterable[str]) -> None:
    """Refuse missing and unknown tensors, before a model is built: a config.json can describe any number of layers."""
    needed = {name for entry in entries for name in entry.theirs}
    known = {*needed, *(name + SCALE_SUFFIX for name in needed), *ignored}
    missing = list_some("missing", sorted(needed - set(folder)))
    unknown = list_some("not known", map(show, sorted(set(folder) - known)))
    _refuse_unfit(folder, missing, unknown)


def check_shapes(folder: HfFolder, entries: Iterable[Entry], ours: Mapping[str, TensorOfModel]) -> None:
    """Refuse tensors of other shapes than the model's."""
    needed: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        shape = ours[entry.ours].shape
        if entry.stacked and len(entry.theirs) != shape[0]:
            raise AssertionError(f"{entry.ours} stacks {shape[0]} tensors, but {len(entry.theirs)} are named")
        needed |= dict.fromkeys(entry.theirs, entry.shape_theirs(shape))
    wrong = [
        f"{name} has shape {list(folder.specs[name].shape)} instead of {list(shape)}"
        for name, shape in sorted(needed.items())
        if folder.specs[name].shape != shape
    ]
    _refuse_unfit(folder, list_some("different", wrong))


def check_tied(folder: HfFolder, config: ModelConfig) -> None:
    """Refuse an output projection that differs from the embedding it is tied to: transformers unties the two then."""
    copy, original = TIED
    if not getattr(config, "tied_embeddings", False) or copy not in folder or original not in folder:
        return
    if not folder.is_equal(copy, original):
        raise CheckpointError(
            f"{folder.path} holds two output projections: {original} and {copy}",
            why=f"{CONFIG_NAME} says tie_word_embeddings, which asks for the former alone; where the two differ, "
            "transformers uses the latter",
            do=f'write "tie_word_embeddings": false into {CONFIG_NAME} to use both; or remove {copy} from the weights',
        )


def _refuse_unfit(folder: HfFolder, *problems: str) -> None:
    if any(problems):
        raise CheckpointError(
            f"the tensors in {folder.path} are not those of the model in its {CONFIG_NAME}",
            why="; ".join(problem for problem in problems if problem),
        )


def plan_ours(folder: HfFolder, entry: Entry, ours: TensorOfModel, dtype: torch.dtype | None) -> TensorSpec:
    """A tensor of ours and its type."""
    types = (folder.specs[name].dtype for name in entry.theirs)
    stored = {torch.bfloat16 if each == FP8_DTYPE else each for each in types}
    if len(stored) > 1 and dtype is None:
        raise CheckpointError(
            f"the parts of {entry.ours} in {folder.path} differ in type",
            why=", ".join(sorted(map(str, stored))),
            do="choose one with --dtype",
        )
    kept = stored.pop()
    cast = dtype is not None and kept.is_floating_point and not ours.is_buffer
    return TensorSpec(MODEL_PREFIX + entry.ours, dtype if cast and dtype else kept, ours.shape)

"""Wrong ways to share sequences among ranks, each found in some other program before: what verify must catch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import monograph.execute.base
import monograph.parallel.apply
import monograph.parallel.context_all_gather
import monograph.parallel.context_latent
from monograph.labels import IGNORED_LABEL
from monograph.models.decoder import Decoder
from monograph.models.parallel_plan import ParallelForm
from monograph.models.sequence_part import WHOLE, SequencePart

Inputs = dict[str, Tensor]


@contextmanager
def changed_inputs(change: Callable[[Inputs, Mapping[str, Tensor], SequencePart], None]) -> Iterator[None]:
    """The inputs of a rank that has a part of each sequence are changed."""
    honest = Decoder.step_inputs

    def step_inputs(self: Decoder, batch: Mapping[str, Tensor], part: SequencePart) -> Inputs:
        inputs = honest(self, batch, part)
        if not part.is_whole:
            change(inputs, batch, part)
        return inputs

    with patch.object(Decoder, "step_inputs", step_inputs):
        yield


def labels_of_own_tokens() -> Any:
    """Labels are the rank's own tokens, shifted: the last token of a slice is followed by another slice's first."""

    def change(inputs: Inputs, _batch: Mapping[str, Tensor], _part: SequencePart) -> None:
        shifted = inputs["tokens"].roll(-1, 1)
        inputs["labels"] = torch.where(inputs["labels"] == IGNORED_LABEL, inputs["labels"], shifted)

    return changed_inputs(change)


def positions_of_own_tokens() -> Any:
    """Tokens are numbered within the rank's part."""

    def change(inputs: Inputs, _batch: Mapping[str, Tensor], _part: SequencePart) -> None:
        inputs["positions"] = torch.arange(inputs["tokens"].shape[1]).expand(inputs["tokens"].shape).contiguous()

    return changed_inputs(change)


@contextmanager
def documents_begin_with_slices() -> Iterator[None]:
    """Every slice begins a document of its own."""
    honest = Decoder.build_segments

    def build(self: Decoder, shape: Any, documents: Tensor | None, part: SequencePart = WHOLE) -> Inputs:
        if documents is not None and not part.is_whole:
            slices = torch.arange(2 * part.count).repeat_interleave(shape[1] // (2 * part.count))
            documents = documents * 2 * part.count + slices
        return honest(self, shape, documents, part)

    with patch.object(Decoder, "build_segments", build):
        yield


@contextmanager
def shared_sequences_ignored() -> Iterator[None]:
    """Attention stays what it is on one device: every rank attends to its own tokens."""
    honest = Decoder.build_segments

    def build(self: Decoder, shape: Any, documents: Tensor | None, part: SequencePart = WHOLE) -> Inputs:
        return honest(self, shape, documents) if part.is_whole else {}

    forms = monograph.parallel.apply.FORMS | {ParallelForm.SHARED_SEQUENCES: lambda *_given: None}
    with patch.object(Decoder, "build_segments", build), patch.object(monograph.parallel.apply, "FORMS", forms):
        yield


@contextmanager
def counted_by_every_rank() -> Iterator[None]:
    """All ranks that share a sequence count its tokens: the loss is divided by their number once more."""
    honest = monograph.execute.base.all_reduce_over_data

    def reduce(value: Tensor) -> Tensor:
        return honest(value) * (2 if value.dtype == torch.int64 else 1)

    with patch.object(monograph.execute.base, "all_reduce_over_data", reduce):
        yield


@contextmanager
def loss_averaged_over_parts() -> Iterator[None]:
    """What is shown is the mean over ranks of shares that are to be summed."""
    honest = monograph.execute.base.all_reduce_over_data

    def reduce(value: Tensor) -> Tensor:
        return honest(value) / 2 if value.is_floating_point() else honest(value)

    with patch.object(monograph.execute.base, "all_reduce_over_data", reduce):
        yield


@contextmanager
def second_slices_in_rank_order() -> Iterator[None]:
    """The second slices of all ranks are taken to be in the order of the sequence."""
    honest = monograph.parallel.context_all_gather.put_in_order

    def put(gathered: Tensor, *, is_reversed: bool) -> Tensor:
        return honest(gathered, is_reversed=False)

    modules = (monograph.parallel.context_all_gather, monograph.parallel.context_latent)
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch.object(module, "put_in_order", put))
        yield


@contextmanager
def gradients_of_the_first_call() -> Iterator[None]:
    """Of the gradients of keys, those that the second slice of queries gave are lost."""
    honest = monograph.parallel.context_all_gather.start_scatters

    def scatter(first: Tensor, second: Tensor, degree: int) -> list[Tensor]:
        return honest(first, torch.zeros_like(second), degree)

    with patch.object(monograph.parallel.context_all_gather, "start_scatters", scatter):
        yield

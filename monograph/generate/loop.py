"""Texts from prompts, several at a time: one pass over the prompts, then one token of each row in every step."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from monograph.errors import ConfigError, MonographError
from monograph.generate.sampling import Sampler, Sampling
from monograph.models.model import Model
from monograph.models.model_config import ModelConfig
from monograph.plurals import counted

PADDING = 0
"""Fills rows of shorter prompts; nothing sees it."""


@dataclass
class Generation:
    """One prompt and what follows it."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    """New tokens, with the one that ended the text."""
    is_ended: bool = False
    """Whether something in the text ended it, rather than the limit."""

    @property
    def text(self) -> list[int]:
        """All tokens of the row."""
        return [*self.prompt, *self.tokens]


@torch.inference_mode()
def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    device: torch.device,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
    sampling: Sampling | None = None,
    use_cache: bool = True,
    first_row: int = 0,
    is_done: Callable[[Generation], bool] | None = None,
) -> list[Generation]:
    """What the model writes after every prompt. Rows are numbered from `first_row`, which decides what they draw; one
    that `is_done` grows no further."""
    sampler = Sampler(sampling or Sampling(), range(first_row, first_row + len(prompts)))
    rows = [Generation(list(prompt)) for prompt in prompts]
    for logits in read_rows(model, rows, device, max_new_tokens, use_cache=use_cache):
        check_logits(logits, rows, first_row)
        chosen = sampler.choose(logits, [row.text for row in rows] if sampler.reads_texts else [])
        for row, token in zip(rows, chosen, strict=True):
            if not row.is_ended:
                row.tokens.append(token)
                row.is_ended = token in stop_ids or (is_done is not None and is_done(row))
        if all(row.is_ended for row in rows):
            break
    return rows


def check_logits(logits: Tensor, rows: Sequence[Generation], first_row: int) -> None:
    """Refuse logits of NaN or inf in rows that go on: argmax of NaN is 0, a token like any other."""
    is_good = torch.isfinite(logits.amax(-1)).tolist()
    for number, (row, good) in enumerate(zip(rows, is_good, strict=True), start=first_row + 1):
        if not good and not row.is_ended:
            is_narrow = logits.dtype.itemsize < 4
            raise MonographError(
                f"the model computes NaN or inf after {counted(len(row.tokens), 'new token')} of prompt {number}",
                why=f"its weights are finite; a value in between is too large for {str(logits.dtype)[6:]}",
                do="--dtype float32" if is_narrow else "use a checkpoint from before the model diverged",
            )


def read_rows(
    model: Model, rows: Sequence[Generation], device: torch.device, steps: int, *, use_cache: bool
) -> Iterator[Tensor]:
    """The logits of each row's next token, [rows, vocabulary], step after step; rows grow in between."""
    longest = max(len(row.prompt) for row in rows)
    padding = [longest - len(row.prompt) for row in rows]
    cache: Any = model.new_cache(len(rows), longest + steps, padding) if use_cache else None
    for step in range(steps):
        if cache is None:
            texts = [torch.tensor([row.text], device=device) for row in rows]
            yield torch.cat([model.predict(text)[:, -1] for text in texts])
        elif step == 0:
            padded = [[PADDING] * count + row.prompt for count, row in zip(padding, rows, strict=True)]
            yield model.predict(torch.tensor(padded, device=device), cache=cache, last=1)[:, -1]
        else:
            newest = torch.tensor([row.tokens[-1:] for row in rows], device=device)
            yield model.predict(newest, cache=cache, last=1)[:, -1]


def check_lengths(config: ModelConfig, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """Refuse an empty prompt, and texts that would grow beyond the positions that the model has."""
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise ConfigError(
                f"prompt {number} is empty",
                why="the model continues a text, and its tokenizer puts no token before one",
                do="write some text",
            )
    limit = config.find_sequence_limit()
    longest = max(map(len, prompts))
    if limit is not None and longest + max_new_tokens > limit.tokens:
        room = limit.tokens - longest
        raise ConfigError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones are more than {limit.field} {limit.tokens}",
            why="positions beyond it do not exist",
            do=f"--max_new_tokens {room}" if room > 0 else "a shorter prompt",
        )

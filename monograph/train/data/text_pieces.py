"""Long texts in pieces that have the same tokens, each alone, as the whole text has.

The tokenizers library takes about 90 bytes of memory for each byte of a text. A piece ends before a space between two
letters, where each step of the tokenizer is known to do the same with and without what is behind it:

- added tokens: none is matched across a space between letters;
- the normalizer: of a kind that looks at one character, or one cluster of them, at a time;
- the pre-tokenizer: it divides words there (split_pattern.py); or, where it divides none, merges of the vocabulary
  never join a letter with a space after it.

Tokenizers that are of no known kind have no pieces.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from monograph.train.data.split_pattern import LETTERS, Cut, judge

PIECE_CHARACTERS = 1 << 18
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The split of a ByteLevel step."""
_BLANK = "▁"
"""Stands for a space in the vocabularies of SentencePiece."""
_LOCAL_NORMALIZERS = frozenset(
    ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer", "Precompiled", "Prepend")
)
_LOCAL_SPLITS = frozenset(("Digits", "Punctuation", "ByteLevel", "Split", "Metaspace"))
"""Steps that look at one word at a time, once words are divided."""


@dataclass(frozen=True)
class Pieces:
    """Where texts may be cut."""

    border: re.Pattern[str]
    """A letter with a space and a letter after it."""
    drops_space: bool
    """The normalizer puts a space before each piece: that of the text is left out."""

    def cut(self, text: str) -> Iterator[str]:
        """The pieces of a text, in order."""
        start = 0
        while found := self.border.search(text, start + PIECE_CHARACTERS):
            yield text[start : found.end()]
            start = found.end() + self.drops_space
        yield text[start:]


def find_pieces(tokenizer: tokenizers.Tokenizer) -> Pieces | None:
    """How texts are cut for a tokenizer; None where nothing proves that the tokens would be the same."""
    normalizer = _read_steps(tokenizer.normalizer, "normalizers")
    splits = _read_steps(tokenizer.pre_tokenizer, "pretokenizers")
    if not all(map(_is_local, normalizer)):
        return None
    normalize = tokenizer.normalizer.normalize_str if tokenizer.normalizer is not None else str
    drops_space = any(step["type"] == "Prepend" for step in normalizer)
    first = normalize(f"{LETTERS[0]} {LETTERS[0]}")
    space = _BLANK if _BLANK in first else " "
    joint = "" if drops_space else " "
    letters = [
        letter
        for letter in LETTERS
        if normalize(f"{letter} {letter}") == normalize(letter) + normalize(f"{joint}{letter}")
        and normalize(f"{letter} {letter}").endswith(f"{letter}{space}{letter}")
    ]
    does, space = _judge_splits(splits, space)
    if does is None or (drops_space and splits) or not _are_apart(tokenizer, drops_space=drops_space):
        return None
    left = _find_unmerged(tokenizer, letters, space) if does is Cut.KEEPS else letters
    if not left:
        return None
    return Pieces(re.compile(f"[{''.join(left)}](?= [{''.join(letters)}])"), drops_space)


def _read_steps(step: Any, inner: str) -> list[dict[str, Any]]:
    """The steps of a part of the pipeline, those of sequences one after the other."""
    waiting = [] if step is None else [json.loads(step.__getstate__())]
    found = []
    while waiting:
        content = waiting.pop(0)
        if content["type"] == "Sequence":
            waiting = content[inner] + waiting
        else:
            found.append(content)
    return found


def _is_local(step: dict[str, Any]) -> bool:
    """Whether a normalizer does the same on both sides of a cut as in the whole text."""
    if step["type"] == "Replace":
        literal = step["pattern"].get("String")
        return step["pattern"].get("Regex") == " {2,}" or bool(literal and not set(literal) & set(LETTERS))
    if step["type"] == "Strip":
        return not step["strip_left"]
    return step["type"] in _LOCAL_NORMALIZERS


def _judge_splits(steps: Sequence[dict[str, Any]], space: str) -> tuple[Cut | None, str]:
    """What all pre-tokenizers do at a cut together, and what stands for a space behind them."""
    for number, step in enumerate(steps):
        does = _judge_split(step, space)
        if does is None:
            return None, space
        if does is Cut.DIVIDES:
            rest = steps[number + 1 :]
            is_known = all(each["type"] in _LOCAL_SPLITS and each.get("prepend_scheme") != "first" for each in rest)
            return (Cut.DIVIDES if is_known else None), space
        if step["type"] == "Metaspace":
            space = _BLANK
    # what is not divided must reach the model as it is written
    is_whole = all(step["type"] == "Metaspace" or _is_idle(step, space) for step in steps)
    return (Cut.KEEPS if is_whole else None), space


def _judge_split(step: dict[str, Any], space: str) -> Cut | None:
    kind = step["type"]
    if kind == "ByteLevel":
        if (step["add_prefix_space"] and space != " ") or not step["use_regex"]:
            return None  # without its split the steps behind it see bytes instead of spaces and letters
        return judge(_GPT2, space)
    if kind == "Metaspace" and step["replacement"] == _BLANK:
        return Cut.DIVIDES if step["split"] else Cut.KEEPS
    if kind in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer"):
        return Cut.DIVIDES if space == " " else None
    if kind == "Digits":
        return Cut.KEEPS
    if kind == "Split":
        return _judge_pattern(step, space)
    return None


def _judge_pattern(step: dict[str, Any], space: str) -> Cut | None:
    if _is_idle(step, space):
        return Cut.KEEPS
    if step["behavior"] not in ("Isolated", "Removed"):
        return None
    literal = step["pattern"].get("String")
    return judge(re.escape(literal) if literal else step["pattern"].get("Regex", "("), space)


def _is_idle(step: dict[str, Any], space: str) -> bool:
    """Whether a step splits at spaces, of which the normalizer has left none."""
    return step["type"] == "Split" and step["pattern"].get("String") == " " and space != " "


def _are_apart(tokenizer: tokenizers.Tokenizer, *, drops_space: bool) -> bool:
    """Whether added tokens are matched on both sides of a cut as in the whole text."""
    letters = set(LETTERS)
    for token, content in _list_added(tokenizer):
        if any(one in letters and other in f" {_BLANK}" for one, other in itertools.pairwise(content)):
            return False
        if token.rstrip and content[-1:] in letters:
            return False
        if token.single_word and content[:1] in ("", " ", _BLANK):
            return False
        # a token that begins at the cut, where the space is left out
        if drops_space and content.removeprefix(" ").removeprefix(_BLANK)[:1] in {"", *letters}:
            return False
    return True


def _list_added(tokenizer: tokenizers.Tokenizer) -> Iterator[tuple[tokenizers.AddedToken, str]]:
    """Added tokens and what is looked for in a text: their content, or what the normalizer makes of it."""
    for token in tokenizer.get_added_tokens_decoder().values():
        yield token, token.content
        if token.normalized and tokenizer.normalizer is not None:
            yield token, tokenizer.normalizer.normalize_str(token.content)


def _find_unmerged(tokenizer: tokenizers.Tokenizer, letters: list[str], space: str) -> list[str]:
    """Letters after which no merge of a BPE takes a space, where a whole text is one word."""
    model = tokenizer.model
    if not isinstance(model, tokenizers.models.BPE) or model.ignore_merges:
        return []
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    if model.continuing_subword_prefix or model.end_of_word_suffix or space not in vocab:
        return []
    merged = {one for token in vocab for one, other in itertools.pairwise(token) if other == space}
    return [letter for letter in letters if letter in vocab and letter not in merged]

"""Special tokens of a tokenizer.json: which ids they are, and texts that may not write them.

A text from the web that holds "<|im_start|>" or "<|endoftext|>" is a text about these words. Read as the tokens, it
would end documents and give orders where only the trainer, a chat template or the user's own prompt may.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tokenizers

from monograph.errors import DataError, did_you_mean
from monograph.system.foreign_text import show

BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]")  # noqa: RUF001
EOS_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]")  # noqa: RUF001
"""Usual names in published tokenizers."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_UNASSIGNED = "\U0010ffff"
"""A character that no vocabulary has."""


def find_special(
    role: str, chosen: str, names: dict[str, Any], usual: Sequence[str], ids: dict[str, int]
) -> int | None:
    """Id of a special token: the user's choice, else that of tokenizer_config.json, else a usual name."""
    named = read_content(names.get(role))
    for name, origin in ((chosen, f"--tokenizer.{role}"), (named, "tokenizer_config.json")):
        if name and name not in ids:
            nearest = did_you_mean(name, [token for token in ids if token.startswith(("<", "["))])
            raise DataError(
                f"the tokenizer has no token {show(repr(name))}",
                why=f"{origin} names it as the {role}",
                do=show(nearest),
            )
        if name:
            return ids[name]
    return next((ids[name] for name in usual if name in ids), None)


def read_content(token: Any) -> str:
    """Text of a token in tokenizer_config.json, which is an object or the text itself; empty for anything else."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def read_declared(names: dict[str, Any]) -> set[str]:
    """Special tokens that tokenizer_config.json names: transformers adds them to those of tokenizer.json."""
    declared = [value for role, value in names.items() if role.endswith("_token")]
    for value in (names.get(key) for key in _LISTS):
        declared += value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    added = names.get("added_tokens_decoder")
    entries = added.values() if isinstance(added, dict) else ()
    declared += [entry for entry in entries if isinstance(entry, dict) and entry.get("special") is True]
    return {content for content in map(read_content, declared) if content}


def keep_plain(tokenizer: tokenizers.Tokenizer, declared: set[str], ends: Sequence[int]) -> np.ndarray:
    """Make a tokenizer encode special tokens in texts as any other text; return [vocabulary] which ids they are.

    `ends` begin and end documents; with those of the names in `declared` they are special, whatever the file says.
    The token for unknown characters is left out of the result: texts have these.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    added = tokenizer.get_added_tokens_decoder()
    for token in sorted({*ends, *(ids[name] for name in declared if name in ids)}):
        entry = added.get(token) or tokenizers.AddedToken(tokenizer.id_to_token(token), normalized=False)
        entry.special = True
        tokenizer.add_special_tokens([entry])
    tokenizer.encode_special_tokens = True
    special = {token: entry.content for token, entry in tokenizer.get_added_tokens_decoder().items() if entry.special}
    _break_apart(tokenizer, special)
    is_special = np.zeros(max(ids.values()) + 1, dtype=bool)
    is_special[[*special]] = True
    is_special[[token for token in _tokenize(tokenizer, _UNASSIGNED) if token not in ends]] = False
    return is_special


def _break_apart(tokenizer: tokenizers.Tokenizer, special: dict[int, str]) -> None:
    """Split texts inside names that the vocabulary also holds as pieces of text: models of whole words and unigrams do.

    The split comes last, so it sees a name in the form in which the model would look it up.
    """
    names = [content for token, content in special.items() if token in _tokenize(tokenizer, content)]
    names = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    if not names:
        return
    inside = "|".join(f"{_escape(name[0])}(?={_escape(name[1:])})" for name in names)
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(inside), behavior="merged_with_previous")
    steps = [tokenizer.pre_tokenizer] if tokenizer.pre_tokenizer is not None else []
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*steps, split])


def _escape(text: str) -> str:
    """A literal in the syntax of the library's regular expressions."""
    return "".join(f"\\x{{{ord(character):x}}}" for character in text)


def _tokenize(tokenizer: tokenizers.Tokenizer, word: str) -> list[int]:
    """Ids that the model alone gives a word; none where it has no token for unknown characters."""
    try:
        return [token.id for token in tokenizer.model.tokenize(word)]
    except Exception:  # the library raises plain Exception
        return []

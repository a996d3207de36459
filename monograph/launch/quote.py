"""Words of a user in a job file: as one word of bash, on one line, whatever is in them."""

import shlex
from collections.abc import Iterable


def quote_word(word: str) -> str:
    """The word for bash. Job files are read by lines (comments, YAML blocks), so a line break is written as \\n."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(_escape(letter) for letter in word) + "'"


def quote_words(words: Iterable[str]) -> str:
    """Several of them."""
    return " ".join(map(quote_word, words))


def _escape(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    return letter if letter.isprintable() else "".join(f"\\x{byte:02x}" for byte in letter.encode())

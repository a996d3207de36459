"""Words of a user in a job file: as one word of bash or one value of YAML, on one line, whatever is in them."""

import json
import os
import re
import shlex
from collections.abc import Iterable

_PLAIN_YAML = re.compile(r"[A-Za-z/][\w./-]*(:[\w.-]+)*", re.ASCII)
_YAML_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
"""Read as something else than text, in any case."""


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
    return letter if letter.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(letter))


def quote_command(path: str) -> str:
    """A command by its path, in which ~ at the beginning stays the home folder on the node."""
    home, slash, rest = path.partition("/")
    return f"{home}/{quote_word(rest)}" if re.fullmatch(r"~\w*", home) and slash and rest else quote_word(path)


def quote_yaml(text: str) -> str:
    """The text as a value or key of YAML. JSON's strings are YAML's; what is read as text anyway stays plain."""
    if _PLAIN_YAML.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)

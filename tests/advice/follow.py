"""Doing what an error says: the command line that its advice makes of the refused one."""

import re
import shlex
from collections.abc import Sequence

from monograph import cli
from monograph.commands.table import LAUNCHER, find_command
from monograph.config.references import load_reference
from monograph.errors import MonographError

_ENDS = (
    ", or ",
    "; ",
    " or ",
    " (",
    " instead of ",
    " with ",
    " to have ",
    " keeps it",
    ", which",
    " in both",
    " for none",
    "?",
)


def refuse(line: str, monkeypatch) -> MonographError | None:
    """What the command line answers to a line before it begins to work; None when it would begin."""
    words = shlex.split(line)
    command, rest = find_command(words)

    def load(name):
        return (lambda *_, **__: 0) if name in (command.function, LAUNCHER) else load_reference(name)

    monkeypatch.setattr(cli, "load_reference", load)
    try:
        cli.run_command(command, rest)
    except MonographError as error:
        return error
    return None


def find_command_words(do: str) -> list[str]:
    """The words of the first command in a piece of advice; none when it is a sentence."""
    if left_out := re.match(r"leave (--\S+) out", do):
        return ["leave", left_out[1]]
    text = do
    for prefix in ("did you mean ", "for example: ", "write ", "it is called "):
        text = text.removeprefix(prefix)
    if not text.startswith("--"):
        return []
    ends = [text.index(end) for end in _ENDS if end in text]
    text = text[: min(ends)] if ends else text
    return shlex.split(text.removesuffix(",").removesuffix(" now"))


def follow(line: str, what: str, do: str) -> str:
    """The line with the advice followed; empty when it gives no command."""
    advice = find_command_words(do)
    words = shlex.split(line)
    if not advice:
        return ""
    if advice[0] == "leave":
        return shlex.join(drop(words, advice[1]))
    unknown = re.match(r"(--\S+)", what)
    if len(advice) == 1 and ("did you mean" in do or "is called" in do) and unknown:
        return shlex.join(advice[0] if word.partition("=")[0] == unknown[1] else word for word in words)
    for flag, values in group(advice):
        words = [*drop(words, flag), flag, *values]
    if ("did you mean" in do or "is called" in do) and unknown and unknown[1] not in advice:
        words = drop(words, unknown[1])
    return shlex.join(words)


def group(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            found.append((flag, [value] if equals else []))
        else:
            found[-1][1].append(word)
    return found


def drop(words: Sequence[str], flag: str) -> list[str]:
    """The words without a flag and its values."""
    kept, is_dropped = [], False
    for word in words:
        if word.startswith("--"):
            is_dropped = word.partition("=")[0].replace("-", "_") == flag.replace("-", "_")
        if not is_dropped:
            kept.append(word)
    return kept

"""Show text from outside: on a terminal, in a log, in an error, on a page (where HTML has its own escaping as well).

A file name or a description from a downloaded folder can hold terminal commands, line breaks that forge log lines, and
characters that turn the direction of the text around them. Shown, they become escapes that are safe and readable.
"""

import re
from typing import Any

_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
_CONTROL_BUT_LINES = re.compile(_CONTROL.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
MAX_SHOWN = 500


def show(value: object, *, max_length: int = MAX_SHOWN) -> str:
    """One line for foreign text: control characters as escapes, the middle of long text left out."""
    text = str(value)
    if len(text) > max_length:
        head, tail = max_length * 2 // 3, max_length // 4
        text = f"{text[:head]} ... {text[-tail:]}"
    return _CONTROL.sub(_escape, text)


def escape_lines(text: str) -> str:
    """Text of ours around foreign pieces: everything that a terminal obeys becomes an escape; lines and tabs stay."""
    return _CONTROL_BUT_LINES.sub(_escape, text)


def split_lines(text: str) -> list[str]:
    """Lines that end in \\n or \\r\\n, without these. str.splitlines also cuts at form feeds, U+0085 and U+2028."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def escape_values(value: Any) -> Any:
    """The same value of JSON with `escape_lines` of every text and key: what a page shows is read, not obeyed."""
    if isinstance(value, str):
        return escape_lines(value)
    if isinstance(value, dict):
        return {escape_lines(key): escape_values(each) for key, each in value.items()}
    return [escape_values(each) for each in value] if isinstance(value, list | tuple) else value


def escape_json(text: str) -> str:
    """JSON on one line, with the same characters as escapes of JSON: it reads back as the same value."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"

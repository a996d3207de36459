"""Pieces of Markdown that every generated page uses."""

import html
import re
from collections.abc import Iterable, Iterator, Sequence

FENCE = re.compile(r"^( *)(```+)[^\n]*\n.*?^\1\2 *$", flags=re.M | re.S)
"""A fenced block, its fences included."""


def make_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a table; cells are Markdown."""
    yield f"| {' | '.join(header)} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def make_code(text: str) -> str:
    """Text as code in a cell of a table, where a vertical bar would end the cell."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;<wbr>')}</code>" if text else ""


def make_cell(text: str) -> str:
    """Prose in a cell of a table: one line, without bars and tags."""
    return " ".join(text.split()).replace("|", "&#124;").replace("<", "&lt;")


def find_title(text: str) -> str:
    """A page's first heading."""
    match = re.search(r"^# (.+)$", text, flags=re.M)
    if match is None:
        raise ValueError("the page has no heading of the first level")
    return match[1].strip()


def split_fences(text: str) -> Iterator[tuple[bool, str]]:
    """(is a fenced block, text), in order: together they are the page."""
    end = 0
    for match in FENCE.finditer(text):
        yield False, text[end : match.start()]
        yield True, match[0]
        end = match.end()
    yield False, text[end:]

"""Writing to a person or to a pipe: tables with colour on a terminal, one plain line per row anywhere else."""

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from monograph.errors import MonographError
from monograph.system.foreign_text import escape_lines
from monograph.system.own_file import naming

_PROSE_COLUMNS = 44
"""With less room than this for the last column of a table, it moves to a line of its own."""


class _Console(Console):
    """Rich, but a reader that has gone away is reported to the caller like any other error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print; text of ours may hold names and texts from outside."""
        super().print(*(escape_lines(each) if isinstance(each, str) else each for each in objects), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape what a terminal would obey in all other pieces; colours and styles are no part of the text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_lines(text), style, control)


def allow_any_text() -> None:
    """Print what the terminal has no character for as an escape: no run ends because of a name that it prints."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def make_console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: what a user wrote is never taken for markup."""
    return _Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True)


def is_terminal() -> bool:
    """Whether a person is watching standard output."""
    return make_console().is_terminal


def print_plain(text: str = "") -> None:
    """One piece of text on standard output, without styling; what a terminal would obey becomes an escape."""
    with naming("standard output"):
        sys.stdout.write(escape_lines(text) + "\n")


def print_rows(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Rows in aligned columns. The last column is prose and may wrap; the others stay whole."""
    if not rows:
        return
    rows = [[escape_lines(cell) for cell in row] for row in rows]
    console = make_console()
    widths = [max(len(row[column]) for row in rows) for column in range(len(styles) - 1)]
    if not console.is_terminal:
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print_plain(f"  {'  '.join([*cells, row[-1]])}".rstrip())
    elif console.width - sum(widths) - 2 * len(styles) < _PROSE_COLUMNS:
        for row in rows:
            console.print(Text("  ").append_text(_join(row[:-1], styles)))
            if row[-1]:
                console.print(Text(f"      {row[-1]}", style=styles[-1]))
    else:
        table = Table.grid(padding=(0, 2))
        table.add_column()
        for style in styles[:-1]:
            table.add_column(style=style, no_wrap=True)
        table.add_column(style=styles[-1], overflow="fold")
        for row in rows:
            table.add_row("", *(Text(cell) for cell in row))
        console.print(table, soft_wrap=False)


def _join(cells: Sequence[str], styles: Sequence[str]) -> Text:
    return Text("  ").join(Text(cell, style=style) for cell, style in zip(cells, styles, strict=False) if cell)


def print_title(title: str, note: str = "") -> None:
    """A heading, with a quieter note beside it."""
    text = Text(escape_lines(title), style="bold")
    if note:
        text.append(escape_lines(f"  {note}"), style="not bold dim")
    make_console().print(text)


def print_error(error: MonographError) -> None:
    """An error for a person, on standard error: what, why, what to do."""
    text = Text()
    what, why, do = map(escape_lines, (error.what, error.why, error.do))
    style = "red" if error.label == MonographError.label else "yellow"
    text.append(f"{error.label}: ", style=f"bold {style}").append(what, style=style)
    if why:
        text.append("\n  why: ", style="bold").append(why)
    if do:
        text.append("\n  do:  ", style="bold").append(do, style="green")
    make_console(stderr=True).print(text)


def drop_output() -> None:
    """Point standard output nowhere, after its reader has gone: Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)

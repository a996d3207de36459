"""Writing to a person or to a pipe: tables with colour on a terminal, one plain line per row anywhere else."""

import io
import os
import sys
from collections.abc import Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from monograph.errors import MonographError
from monograph.system.console import make_console, print_plain, print_traceback
from monograph.system.foreign_text import escape_lines, show

_PROSE_COLUMNS = 44
"""With less room than this for the last column of a table, it moves to a line of its own."""


def allow_any_text() -> None:
    """Print what the terminal has no character for, or would obey in a traceback, as an escape: no run ends because of
    a name that it prints."""
    sys.excepthook = print_traceback
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_terminal() -> bool:
    """Whether a person is watching standard output."""
    return make_console().is_terminal


def print_rows(rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
    """Rows in aligned columns, a line each. The last column is prose and may wrap; the others stay whole."""
    if not rows:
        return
    rows = [[show(cell, max_length=sys.maxsize) for cell in row] for row in rows]
    console = make_console()
    widths = [max(len(row[column]) for row in rows) for column in range(len(styles) - 1)]
    if not console.is_terminal:
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            print_plain(f"  {'  '.join([*cells, row[-1]])}".rstrip())
    elif console.width - sum(widths) - 2 * len(styles) < min(_PROSE_COLUMNS, max(len(row[-1]) for row in rows)):
        for row in rows:
            indent = "  " if row[0] else "      "  # a row without a name belongs to the named one above it
            console.print(Text(indent).append_text(_join(row[:-1], styles)))
            if row[-1]:
                console.print(Padding(Text(row[-1], style=styles[-1]), (0, 0, 0, len(indent) + 4)), soft_wrap=False)
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
    # Lines after the first are indented: a name with a line break cannot look like output of ours.
    what, why, do = (escape_lines(part).replace("\n", "\n       ") for part in (error.what, error.why, error.do))
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

"""Print on terminals: everything that a terminal would obey becomes an escape, and nothing is taken for markup.

Names of files, modules and metrics, texts of errors and logs come from outside. All printing goes through here.
"""

import sys
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from monograph.system.foreign_text import escape_lines
from monograph.system.own_file import naming


class _Console(Console):
    """Rich, but a reader that has gone away is reported to the caller like any other error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print; text of ours may hold names and texts from outside."""
        super().print(*(escape_lines(each) if isinstance(each, str) else each for each in objects), **settings)

    def render_str(self, text: str, **settings: Any) -> Text:
        """Text of a cell or a title, escaped before its width is measured."""
        return super().render_str(escape_lines(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Escape what a terminal would obey in all other pieces; colours and styles are no part of the text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_lines(text), style, control)


def make_console(*, stderr: bool = False, soft_wrap: bool = True, min_width: int = 0) -> Console:
    """A console that prints text as it is: what a user wrote is never taken for markup."""
    console = _Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=soft_wrap)
    if console.width < min_width:
        console.width = min_width
    return console


def styled(*parts: str | tuple[str, str]) -> Text:
    """Pieces of text, some with a style of ours; rich drops control characters without a trace, here they show."""
    return Text.assemble(
        *(escape_lines(part) if isinstance(part, str) else (escape_lines(part[0]), part[1]) for part in parts)
    )


def print_plain(text: str = "") -> None:
    """One piece of text on standard output, without styling; what a terminal would obey becomes an escape."""
    with naming("standard output"):
        sys.stdout.write(escape_lines(text) + "\n")


def print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A traceback on standard error: exceptions quote files, names and documents."""
    sys.stderr.write(escape_lines("".join(traceback.format_exception(kind, error, trace))))


def print_content(text: str) -> None:
    """Text that was asked for as it is: escaped on a terminal, unchanged in a file or a pipe."""
    with naming("standard output"):
        sys.stdout.write((escape_lines(text) if sys.stdout.isatty() else text) + "\n")

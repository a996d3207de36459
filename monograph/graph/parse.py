"""Reads the text of a graph back into parts and lines: enough to compare two texts, not to run them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from monograph.system.foreign_text import split_lines

_HEAD = re.compile(r"^(forward|backward)(?: block (\d+))?:(?: \((.*)\))?$")
_LINE = re.compile(r"^  (?:(\d+): )?(.*)$")
_READ = re.compile(r"(?<![\w.%*])(?:([fb])([+-]?\d+)?\.(\d+)|in(\d+))(?![\w.])")
_DIRECTIONS = {"f": "forward", "b": "backward"}


class LineName(NamedTuple):
    """A node's name, the same from wherever one looks."""

    direction: str
    block: int | None
    number: int


@dataclass(frozen=True)
class LineRun:
    """Lines that follow each other in one block and direction."""

    direction: str
    block: int | None
    outside: tuple[str, ...]
    """What `in0`, `in1`, ... stand for here."""


@dataclass(frozen=True)
class Line:
    """One node, or a note without a number."""

    number: int | None
    text: str
    run: LineRun

    @property
    def key(self) -> str:
        """What the node does, whatever it reads."""
        call, mark, facts = self.text.partition("  # ")
        return _READ.sub("_", call) + mark + facts

    @property
    def reads(self) -> list[LineName]:
        """The values it reads, by their full names."""
        return [self._resolve(found) for found in _READ.finditer(self.text.partition("  # ")[0])]

    def _resolve(self, found: re.Match[str]) -> LineName:
        if found[4] is None:
            own = self.run.block if found[2] is None else int(found[2])
            return LineName(_DIRECTIONS[found[1]], own, int(found[3]))
        listed = _READ.fullmatch(self.run.outside[int(found[4])])
        if listed is None:
            raise LookupError(f"the head of a part lists {self.run.outside[int(found[4])]}, which is no value")
        block = None if listed[2] is None else int(listed[2]) + (self.run.block or 0)
        return LineName(_DIRECTIONS[listed[1]], block, int(listed[3]))

    def __str__(self) -> str:
        """The line with what it reads from outside spelled out."""
        call, mark, facts = self.text.partition("  # ")
        call = _READ.sub(lambda found: f"in({self.run.outside[int(found[4])]})" if found[4] else found[0], call)
        return f"{call}{mark}{facts}" if self.number is None else f"{self.number}: {call}{mark}{facts}"


@dataclass(frozen=True)
class Part:
    """All lines of one block in one direction; where others run in between, a note says so."""

    direction: str
    block: int | None
    lines: tuple[Line, ...]
    body: str
    """The lines as they stand: parts with equal bodies are equal."""


def parse_text(text: str) -> dict[tuple[str, int | None], Part]:
    """The parts of an unfolded text, by direction and block, in the order they first run."""
    runs: dict[tuple[str, int | None], list[tuple[int, list[Line]]]] = {}
    order: list[LineRun] = []
    for run, lines in _split(text):
        runs.setdefault((run.direction, run.block), []).append((len(order), lines))
        order.append(run)
    return {key: _join(key, found, order) for key, found in runs.items()}


def _split(text: str) -> Iterator[tuple[LineRun, list[Line]]]:
    run: LineRun | None = None
    lines: list[Line] = []
    for each in split_lines(text):
        head = _HEAD.match(each)
        if head:
            if run is not None:
                yield run, lines
            listed = tuple(name.partition(" = ")[2] for name in head[3].split(", ")) if head[3] else ()
            run, lines = LineRun(head[1], None if head[2] is None else int(head[2]), listed), []
        elif run is not None and (found := _LINE.match(each)):
            lines.append(Line(None if found[1] is None else int(found[1]), found[2], run))
    if run is not None:
        yield run, lines


def _join(key: tuple[str, int | None], runs: list[tuple[int, list[Line]]], order: list[LineRun]) -> Part:
    lines: list[Line] = []
    end = None
    for index, found in runs:
        if end is not None:
            between = [_name_seen(each, key[1]) for each in order[end + 1 : index]]
            names = f"{between[0]} runs" if len(between) == 1 else f"{between[0]} to {between[-1]} run"
            lines.append(Line(None, f"({names} here)", order[index]))
        lines += found
        end = index
    return Part(*key, tuple(lines), "\n".join(f"{line.number}: {line.text}" for line in lines))


def _name_seen(run: LineRun, block: int | None) -> str:
    if run.block is None:
        return run.direction
    return f"{run.direction} block {run.block}" if block is None else f"{run.direction} block {run.block - block:+d}"

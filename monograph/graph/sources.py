"""The line of model code a node comes from, where the capture was asked to remember it."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.fx import Node

from monograph.system.foreign_text import split_lines

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = Path(__file__).parent.parent.parent


def source_of(node: Node) -> str:
    """`monograph/models/router.py:52`: the innermost line outside of torch; empty when it was not recorded."""
    return _find_line(node.stack_trace or "")


@functools.lru_cache(maxsize=4096)
def _find_line(stack_trace: str) -> str:
    frames = [found for found in _FRAME.findall(stack_trace) if not found[0].startswith(_TORCH)]
    if not frames:
        return ""
    path, line = frames[-1]
    for folder in (_PACKAGE, Path.cwd()):
        if Path(path).is_relative_to(folder):
            path = str(Path(path).relative_to(folder))
    return f"{path}:{line}"


def read_excerpts(sources: Iterable[str], *, around: int = 4) -> dict[str, list[tuple[int, str]]]:
    """The named lines, with some lines around each, by file: pairs of number and text. A file that cannot be read is
    left out."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for source in sources:
        path, _, line = source.rpartition(":")
        wanted[path] |= set(range(int(line) - around, int(line) + around + 1))
    found = {}
    for path, numbers in sorted(wanted.items()):
        lines = _read_lines(path)
        found[path] = [(number, lines[number - 1]) for number in sorted(numbers) if 0 < number <= len(lines)]
    return {path: lines for path, lines in found.items() if lines}


def _read_lines(path: str) -> list[str]:
    for folder in (_PACKAGE, Path.cwd()):  # an absolute path stays as it is
        try:
            return split_lines((folder / path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    return []

"""The tour docs/how_it_works.py as a page: each chapter is a section, its comments the text between the code."""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path


def make_tour_page(path: Path) -> str:
    """The page of the tour; the program itself stays what is run and tested."""
    return "\n".join(_make_lines(path.read_text(encoding="utf-8"))) + "\n"


def _make_lines(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    title, _, intro = inspect.cleandoc(ast.get_docstring(tree) or "").partition("\n\n")
    yield from ("# A tour that runs", "", title.partition(":")[0] + ", one tiny run from config to graph.", "", intro)
    lines = source.splitlines()
    for node in tree.body:
        if not (isinstance(node, ast.FunctionDef) and node.name.startswith("chapter_")):
            continue
        _, number, *words = node.name.split("_")
        yield from ("", f"## {number}. {' '.join(words).capitalize()}", "", ast.get_docstring(node) or "", "")
        first = node.body[0]
        body = lines[(first.end_lineno or first.lineno) : node.end_lineno]
        yield from split_comments(textwrap.dedent("\n".join(body)).splitlines())


def split_comments(lines: list[str]) -> Iterator[str]:
    """Code in fenced blocks, and comments that have lines of their own as text between them."""
    for is_comment, group in itertools.groupby(lines, key=lambda line: line.startswith("#")):
        text = list(group)
        if is_comment:
            yield from ("", *(line.removeprefix("#").strip() for line in text), "")
        elif code := "\n".join(text).strip("\n"):
            yield from ("```python", code, "```")

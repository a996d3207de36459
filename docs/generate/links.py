"""Links between files of the repository as links between pages of the site.

A page links to files as they lie in the repository, so that it can be read there too. On the site, results and house
rules have pages of their own, and a source file becomes a page when something links to it.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from docs.generate.markdown import split_fences

ROOT = Path(__file__).parent.parent.parent
MOVED = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs/how_it_works.py": "concepts/tour.md",
    "docs/decisions": "decisions/index.md",
    "benchmarks/results": "results/index.md",
}
"""File or folder of the repository -> page of the site."""
FOLDERS = {"docs/": "", "benchmarks/results/": "results/"}
"""Folder of the repository -> folder of the site, for what keeps its name."""
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")


def find_page(path: str) -> str:
    """The page of the site that shows a file of the repository."""
    if path in MOVED:
        return MOVED[path]
    for folder, target in FOLDERS.items():
        if path.startswith(folder) and not path.endswith(".py"):
            return target + path.removeprefix(folder)
    return f"source/{path}.md"


def find_links(text: str, path: str) -> Iterator[str]:
    """The files that the text of `path` links to, as paths from the root of the repository."""
    for is_code, part in split_fences(text):
        if not is_code:
            for match in _LINK.finditer(part):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))


def find_sources(text: str, path: str) -> list[str]:
    """The source files among them: those that need a page because of this text."""
    return [each for each in find_links(text, path) if find_page(each).startswith("source/")]


def rewrite_links(text: str, path: str) -> str:
    """The text of `path` with links to pages of the site in place of links to files."""
    here = posixpath.dirname(find_page(path))

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), match[1]))
        return f"]({posixpath.relpath(find_page(target), here or '.')}{match[2] or ''})"

    return "".join(part if is_code else _LINK.sub(rewrite, part) for is_code, part in split_fences(text))

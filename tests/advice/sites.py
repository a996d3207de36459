"""Every `do=` of an error in the package, from the source: where it is, and what it says with `{}` for what varies."""

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "monograph"
_PREFIXES = ("did you mean ", "for example: ", "write ", "it is called ")


@dataclass(frozen=True)
class Site:
    """One piece of advice."""

    file: str
    first: int
    last: int
    texts: tuple[str, ...]

    @property
    def key(self) -> str:
        return f"{self.file}: {' | '.join(self.texts)}"

    @property
    def is_command(self) -> bool:
        """Whether it is to be typed: it begins with a flag or a program. Anything else is a sentence."""
        return any(is_command(text) for text in self.texts)

    @property
    def varies(self) -> bool:
        """Whether a command is not known before something was refused."""
        return any(is_command(text) and "{}" in text for text in self.texts)


def is_command(text: str) -> bool:
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    return bool(re.match(r"--\S|monograph |pip ", text))


def render(node: ast.AST) -> list[str]:
    """The texts that an expression may be, with `{}` for values."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and node.value else []
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return [*render(node.body), *render(node.orelse)]
    if isinstance(node, ast.BoolOp):
        return [text for each in node.values for text in render(each)]
    if isinstance(node, ast.BinOp):
        return [f"{left}{right}" for left in render(node.left) or [""] for right in render(node.right) or [""]]
    return []


@cache
def find_sites() -> tuple[Site, ...]:
    """All of them, in the order of the files."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for keyword in node.keywords if isinstance(node, ast.Call) else []:
                if keyword.arg == "do":
                    name = path.relative_to(PACKAGE).as_posix()
                    found.append(Site(name, node.lineno, node.end_lineno or node.lineno, tuple(render(keyword.value))))
    return tuple(found)


def find_raised(error: BaseException) -> Site | None:
    """The site that an error was made at, before others took its place."""
    deepest = error
    while deepest.__context__ is not None and hasattr(deepest.__context__, "do"):
        deepest = deepest.__context__
    trace = deepest.__traceback__
    places = []
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    for file, line in reversed(places):
        for site in find_sites():
            if file.endswith(f"monograph/{site.file}") and site.first - 1 <= line <= site.last:
                return site
    return None

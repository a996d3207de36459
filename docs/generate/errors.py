"""The page on errors: exit codes and every error class of the package."""

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType

from docs.generate.markdown import make_cell, make_code, make_table
from docs.generate.package import find_subclasses
from monograph import cli, errors
from monograph.config.docs import find_summary
from monograph.errors import MonographError


def make_errors_page() -> str:
    """What an error looks like, the exit codes, and the classes."""
    return "\n".join(_make_lines()) + "\n"


def find_exit_codes(module: ModuleType) -> dict[int, str]:
    """Code -> meaning: the `EXIT_...` constants of a module with the text that follows each."""
    body = ast.parse(inspect.getsource(module)).body
    found = {}
    for statement, after in itertools.pairwise(body):
        if not (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)):
            continue
        name = statement.targets[0].id
        if name.startswith("EXIT_") and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[int(getattr(module, name))] = str(after.value.value)
    return found


def _make_lines() -> Iterator[str]:
    classes = find_subclasses(MonographError)
    yield from ("# Errors", "")
    yield "An error says what was written, why it cannot work and what to write instead; there is no traceback. A"
    yield "traceback is a bug of monograph. What can be refused is refused before anything starts."
    yield from ("", "## Exit codes", "")
    codes = {0: "The command did what was asked."} | find_exit_codes(errors) | find_exit_codes(cli)
    codes |= {each.exit_code: find_summary(each) for each in classes if each.exit_code not in codes}
    yield from make_table(("code", ""), [(str(code), make_cell(codes[code])) for code in sorted(codes)])
    yield from ("", "## Error classes", "")
    yield "All are subclasses of `monograph.errors.MonographError` and have `what`, `why`, `do` and `exit_code`."
    yield ""
    yield from make_table(
        ("class", "exit code", "module", ""),
        [
            (make_code(each.__name__), str(each.exit_code), make_code(each.__module__), make_cell(find_summary(each)))
            for each in classes
        ],
    )

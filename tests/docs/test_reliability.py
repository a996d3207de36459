"""The table of faults names tests that exist, and says in which run they are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
ROWS = re.findall(r"\| ([PLN, ]+) \| `([\w/]+\.py)::(\w+)` \|$", PAGE, flags=re.M)


def test_every_row_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and not line.startswith(("|---", "| fault"))]
    assert len(rows) == len(ROWS) > 40


@pytest.mark.parametrize(("where", "file", "name"), ROWS)
def test_a_test_of_the_table_exists_and_runs_where_it_says(where, file, name):
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    marks = " ".join(ast.unparse(each) for each in found.decorator_list)
    marks += " ".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    is_fault = "pytest.mark.faults" in marks
    assert is_fault == (where == "N"), where
    if "P" in where:
        assert "pytest.mark.long" not in [ast.unparse(each) for each in found.decorator_list], "all of it is long"
    if "L" in where:
        assert "mark.long" in (ROOT / "tests" / file).read_text(encoding="utf-8")

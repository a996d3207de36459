"""The page of promises and the table of the attacks name tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
TABLE = (ROOT / "docs" / "decisions" / "0045-security.md").read_text()
ATTACKS = 30
REFERENCES = set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE))
REFERENCES |= {(f"tests/{file}", test) for file, test in re.findall(r"`([\w/]+\.py)::(\w+)`", TABLE)}


@pytest.mark.parametrize(("file", "test"), sorted(REFERENCES))
def test_a_test_that_the_page_names_exists(file, test):
    assert re.search(rf"^def {test}\(" if test else "^def test_", (ROOT / file).read_text(), re.MULTILINE)


def test_each_of_the_thirty_attacks_has_a_row_with_its_tests():
    rows = re.findall(r"^\| (\d+)\. .*$", TABLE, re.MULTILINE)
    assert sorted(map(int, rows)) == list(range(1, ATTACKS + 1))
    assert all("::test_" in row for row in TABLE.splitlines() if re.match(r"\| \d+\. ", row))


def test_every_promise_names_a_test():
    rows = [line for line in PAGE.split("## Promises")[1].split("## Not promised")[0].splitlines() if line[:1] == "|"]
    promises = [row for row in rows if not row.startswith(("| promise", "|---"))]
    assert len(promises) > 15 and all("`tests/" in row for row in promises)

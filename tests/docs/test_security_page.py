"""The page of promises names tests that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
REFERENCES = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))


@pytest.mark.parametrize(("file", "test"), REFERENCES)
def test_a_test_that_the_page_names_exists(file, test):
    assert re.search(rf"^def {test or 'test_'}", (ROOT / file).read_text(), re.MULTILINE)


def test_every_promise_names_a_test():
    rows = [line for line in PAGE.split("## Promises")[1].split("## Not promised")[0].splitlines() if line[:1] == "|"]
    promises = [row for row in rows if not row.startswith(("| promise", "|---"))]
    assert len(promises) > 15 and all("`tests/" in row for row in promises)

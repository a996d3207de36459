"""The page: one file, nothing from elsewhere, and data that cannot break out of it."""

import json
import re

from monograph.report.page import make_page

HOSTILE = "</script><script>alert('no')</script>"


def make_report():
    return {"run": {"recipe": HOSTILE}, "captured": {"saved": [1]}, "passes": [], "final": {"saved": [1]}}


def test_the_page_needs_no_other_file():
    page = make_page(make_report())
    assert not re.findall(r"(?:src|href)\s*=|@import|url\(", page)
    assert set(re.findall(r"https?://[^\"']+", page)) == {"http://www.w3.org/2000/svg"}, "a name, not an address"


def test_what_the_report_says_cannot_end_the_script_it_stands_in():
    page = make_page(make_report())
    assert page.count("<script>") == page.count("</script>") == 1


def test_the_page_holds_the_report_without_the_long_list_of_saved_values():
    page = make_page(make_report())
    data = json.loads(re.search(r"const report = (.*);\n", page)[1])
    assert data == {"run": {"recipe": HOSTILE}, "captured": {}, "passes": [], "final": {}}


def test_the_page_serves_light_and_dark_and_small_screens():
    page = make_page(make_report())
    assert "prefers-color-scheme: dark" in page
    assert "max-width: 900px" in page

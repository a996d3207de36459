"""The page: one file that needs nothing else, with the report's data inside and a script that draws it."""

from importlib import resources
from typing import Any

from monograph import strict_json

_MARK = "/*report*/null"


def make_page(report: dict[str, Any]) -> str:
    """The report as HTML; nothing in the data can end the script it stands in."""
    template = resources.files("monograph.report").joinpath("page.html").read_text(encoding="utf-8")
    data = strict_json.dump(shorten(report), is_compact=True).replace("<", "\\u003c")
    assert template.count(_MARK) == 1, "the template has one place for the data"
    return template.replace(_MARK, data)


def shorten(report: dict[str, Any]) -> dict[str, Any]:
    """What the page shows: saved values folded over blocks, without the list of all of them."""
    lighter = {name: {k: v for k, v in report[name].items() if k != "saved"} for name in ("captured", "final")}
    return report | lighter

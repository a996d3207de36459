"""The pages: each one file that needs nothing else, with its data inside and a script that draws it.

Style and drawing functions are shared (shared.css, shared.js).
"""

from importlib import resources
from typing import Any

from monograph import strict_json

_MARK = "/*report*/null"
_SHARED = {"/*style*/": "shared.css", "/*shared*/": "shared.js"}


def make_page(report: dict[str, Any]) -> str:
    """The report of a step as HTML."""
    return fill_template("page.html", shorten(report))


def make_run_page(runs: dict[str, Any]) -> str:
    """Training runs as HTML."""
    return fill_template("run_page.html", runs)


def fill_template(name: str, content: dict[str, Any]) -> str:
    """A template with the shared parts and its data; nothing in the data can end the script it stands in."""
    template = _read(name)
    for mark, file in _SHARED.items():
        assert template.count(mark) == 1, f"{name} has one place for {file}"
        template = template.replace(mark, _read(file))
    data = strict_json.dump(content, is_compact=True).replace("<", "\\u003c")
    assert template.count(_MARK) == 1, f"{name} has one place for its data"
    return template.replace(_MARK, data)


def _read(name: str) -> str:
    return resources.files("monograph.report").joinpath(name).read_text(encoding="utf-8")


def shorten(report: dict[str, Any]) -> dict[str, Any]:
    """What the page shows: saved values folded over blocks, without the list of all of them."""
    lighter = {name: {k: v for k, v in report[name].items() if k != "saved"} for name in ("captured", "final")}
    return report | lighter

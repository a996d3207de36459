"""The pages: each one file that needs nothing else, with its data inside and a script that draws it.

Style, drawing functions and the view of a graph are shared (shared.css, shared.js, graph.js). Loads without torch.
"""

import re
from importlib import resources
from typing import Any

from monograph import strict_json
from monograph.system.foreign_text import escape_values

_DATA = "/*report*/null"
_INCLUDE = re.compile(r"/\*include ([\w.]+)\*/")


def make_page(report: dict[str, Any]) -> str:
    """The report of a step, or of two that are compared, as HTML."""
    return fill_template("page.html", shorten(report))


def make_pipeline_page(*reports: dict[str, Any]) -> str:
    """The report of a pipeline, or of two side by side, as HTML."""
    return fill_template("pipeline_page.html", list(reports))


def make_run_page(runs: dict[str, Any]) -> str:
    """Training runs as HTML."""
    return fill_template("run_page.html", runs)


def make_plan_page(plan: dict[str, Any]) -> str:
    """A plan as HTML."""
    return fill_template("plan_page.html", plan)


def fill_template(name: str, content: Any) -> str:
    """A template with the shared parts and its data.

    Nothing in the data can end the script it stands in or turn the direction of text around.
    """
    template = _INCLUDE.sub(lambda found: _read(found[1]), _read(name))
    data = strict_json.dump(escape_values(content), is_compact=True).replace("<", "\\u003c")
    assert template.count(_DATA) == 1, f"{name} has one place for its data"
    return template.replace(_DATA, data)


def _read(name: str) -> str:
    return resources.files("monograph.report").joinpath(name).read_text(encoding="utf-8")


def shorten(report: dict[str, Any]) -> dict[str, Any]:
    """What the page shows: saved values folded over blocks, without the list of all of them."""
    lighter = {name: {k: v for k, v in report[name].items() if k != "saved"} for name in ("captured", "final")}
    return report | lighter

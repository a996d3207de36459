"""Two reports of `monograph inspect` as one: what a page shows of both, side by side. Loads without torch."""

from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.graph.diff import diff_texts, find_deep_keys
from monograph.graph.parse import parse_text
from monograph.report.folder import MAX_REPORT_BYTES
from monograph.report.page import make_page, make_pipeline_page
from monograph.system.foreign_json import UnusableFile, read_json

MAX_LINES = 20_000
"""Of the difference; a page with more would be slow to open."""


def read_report(folder: str) -> dict[str, Any]:
    """The report.json that inspect wrote into a folder."""
    path = Path(folder) / "report.json"
    try:
        report: dict[str, Any] = read_json(path, max_bytes=MAX_REPORT_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}",
            why="monograph inspect writes it",
            do="name a folder that was given to inspect as --out",
        ) from None
    except UnusableFile as error:
        raise ConfigError(f"{path} is not a report of this version", why=error.why, do="inspect it again") from None
    if reason := find_defect(report):
        raise ConfigError(f"{path} is not a report of this version", why=reason, do="inspect it again")
    return report


def find_defect(report: dict[str, Any]) -> str:
    """The first part that a comparison reads and that is not as inspect writes it; empty when there is none."""
    if not isinstance(report.get("graphs"), dict):
        return "there is no graph in it"
    if not isinstance(report.get("run"), dict):
        return "run is not an object"
    if "stages" in report:
        return ""  # a pipeline's page takes its report as it is
    for name in ("captured", "final", "code"):
        if not isinstance(report.get(name), dict):
            return f"{name} is not an object"
    for name in ("captured", "final"):
        if not isinstance(report[name].get("ops"), dict):
            return f"{name} has no ops"
    passes = report.get("passes")
    if not isinstance(passes, list) or not all(
        isinstance(row, dict) and isinstance(row.get("name"), str) for row in passes
    ):
        return "passes is not a list of passes"
    try:
        for part in parse_text(unfold(report["graphs"])).values():
            find_deep_keys(part)
    except (LookupError, TypeError, AttributeError, ValueError):
        return "its graphs are not lists of lines that read each other"
    return ""


def compare_reports(left: dict[str, Any], right: dict[str, Any]) -> str:
    """The page of both, as HTML; two steps or two pipelines."""
    pipelines = ["stages" in report for report in (left, right)]
    if pipelines[0] != pipelines[1]:
        raise ConfigError("one report is of a pipeline and the other of a step", why="they have no graph in common")
    return make_pipeline_page(left, right) if all(pipelines) else make_page(join_reports(left, right))


def join_reports(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Both steps after all passes, in the form of one report: the first in the place of the captured graph."""
    rows = {each["name"]: {"name": each["name"], "a": None, "b": each} for each in right["passes"]}
    for each in left["passes"]:
        rows.setdefault(each["name"], {"name": each["name"], "b": None})["a"] = each
    for row in rows.values():
        row |= {side: _without_diff(row[side]) for side in ("a", "b")}
    lines = diff_texts(unfold(left["graphs"]), unfold(right["graphs"])).splitlines()
    more = [f"... {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    return {
        "run": left["run"],
        "against": right["run"],
        "captured": left["final"],
        "final": right["final"],
        "passes": list(rows.values()),
        "diff": "\n".join([*lines[:MAX_LINES], *more]),
        "code": left["code"] | right["code"],
    }


def unfold(graphs: dict[str, Any], version: int = -1) -> str:
    """The text of one version without folding, as `diff_texts` reads it."""
    lines = []
    for part in graphs["versions"][version]["parts"]:
        body = graphs["bodies"][part["body"]]["text"].split("\n")
        lines += [f"{part['name']}:{part['outside']}", *(f"  {line}" for line in body)]
    return "\n".join(lines) + "\n"


def _without_diff(record: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if record is None else {name: value for name, value in record.items() if name != "diff"}

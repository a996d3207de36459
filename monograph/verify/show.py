"""The verdict for a person (a table) and for a program (JSON)."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from monograph.parallel.mesh import Mesh
from monograph.verify.compare import ModuleRow
from monograph.verify.verdict import Verdict
from monograph.whole_file import write_output

_COLUMNS = (
    ("output", ("forward",)),
    ("d output", ("backward",)),
    ("start", ("start",)),
    ("gradient", ("gradient",)),
    ("updated", ("state", "updated")),
)
"""Title and kinds of the numbers shown for each module: the largest of them."""


def print_verdict(verdict: Verdict, mesh: Mesh) -> None:
    """Every module with its largest differences, then one line that says it all; float8 after fp32."""
    console = Console()
    title = f"sharded against one device in {verdict.precision}, largest relative difference"
    title += f" (tolerance {verdict.tolerance:.0e})"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("module", overflow="fold")
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right", min_width=7)
    table.add_column("routing", justify="right", min_width=7)
    for row in verdict.all.rows.values():
        numbers = [_show(_find_largest(row, kinds), verdict.tolerance) for _, kinds in _COLUMNS]
        routing = "" if row.routing is None else ("equal" if not row.routing else f"[red]{row.routing} differ[/red]")
        table.add_row(row.path, *numbers, routing)
    console.print(table)
    results = {"loss": verdict.all.loss, "gradient norm": verdict.all.grad_norm, **verdict.all.metrics}
    console.print(
        "   ".join(f"{name} {_show(value, verdict.tolerance)}" for name, value in results.items()), highlight=False
    )
    console.print(f"numerics promised: {verdict.numerics}", highlight=False)
    for entry in verdict.all.mismatches:
        console.print(f"[red]{entry}[/red]", highlight=False)
    if verdict.is_close:
        words = f"the plan on {mesh.world_size} ranks computes what one device computes in {verdict.precision}"
        console.print(f"[green]equal[/green]: {words}")
    else:
        console.print(f"[red]different[/red], first in step {verdict.step} at {verdict.blame}", highlight=False)
    for each in verdict.uncovered:
        console.print(f"[yellow]not compared[/yellow]: {escape(each)}", highlight=False)
    if verdict.float8_reason:
        console.print(f"[yellow]not compared in float8[/yellow]: {verdict.float8_reason}", highlight=False)
    if verdict.float8 is not None:
        print_verdict(verdict.float8, mesh)


def write_verdict(verdict: Verdict, path: Path) -> None:
    """All numbers as JSON, where a difference that is not finite is a word: "inf" or "nan"."""
    write_output(path, json.dumps(_as_json(verdict), indent=1, allow_nan=False) + "\n")


def _as_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "is_equal": verdict.is_equal,
        "blame": verdict.blame,
        "step": verdict.step,
        "tolerance": verdict.tolerance,
        "precision": verdict.precision,
        "numerics": verdict.numerics,
        "loss": _plain(verdict.all.loss),
        "grad_norm": _plain(verdict.all.grad_norm),
        "metrics": {name: _plain(value) for name, value in verdict.all.metrics.items()},
        "not_compared": list(verdict.uncovered),
        "torn": [str(entry) for entry in verdict.all.mismatches],
        "modules": [{name: _plain(v) for name, v in asdict(row).items()} for row in verdict.all.rows.values()],
        "float8_reason": verdict.float8_reason,
        "float8": None if verdict.float8 is None else _as_json(verdict.float8),
    }


def _find_largest(row: ModuleRow, kinds: Sequence[str]) -> float | None:
    return max((value for kind in kinds if (value := getattr(row, kind)) is not None), default=None)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _show(value: float | None, tolerance: float) -> str:
    if value is None:
        return ""
    text = "0" if value == 0 else ("inf" if math.isinf(value) else f"{value:.1e}")
    return f"[red]{text}[/red]" if value > tolerance else text

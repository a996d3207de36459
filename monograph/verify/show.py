"""The verdict for a person (a table) and for a program (JSON)."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from monograph.parallel.mesh import Mesh
from monograph.plurals import counted
from monograph.system.console import make_console, styled
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
    console = make_console(soft_wrap=False)
    title = f"sharded against one device in {verdict.precision}, largest relative difference"
    title += f" (tolerance {verdict.tolerance:.0e})"
    table = Table(title=title, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("module", overflow="fold")
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right", min_width=7)
    table.add_column("routing", justify="right", min_width=7)
    for row in verdict.all.rows.values():
        numbers = [_show(_find_largest(row, kinds), verdict.tolerance) for _, kinds in _COLUMNS]
        routing = "equal" if row.routing == 0 else Text(f"{row.routing} differ" if row.routing else "", "red")
        table.add_row(row.path, *numbers, routing)
    console.print(table)
    results = {"loss": verdict.all.loss, "gradient norm": verdict.all.grad_norm, **verdict.all.metrics}
    shown = [styled(f"{name} ").append_text(_show(value, verdict.tolerance)) for name, value in results.items()]
    console.print(Text("   ").join(shown))
    console.print(f"numerics promised: {verdict.numerics}")
    for entry in verdict.all.mismatches:
        console.print(styled((str(entry), "red")))
    if verdict.is_close:
        words = (
            f"the plan on {counted(mesh.world_size, 'rank')} computes what one device computes in {verdict.precision}"
        )
        console.print(styled(("equal", "green"), f": {words}"))
    else:
        console.print(styled(("different", "red"), f", first in step {verdict.step} at {verdict.blame}"))
    for each in verdict.uncovered:
        console.print(styled(("not compared", "yellow"), f": {each}"))
    if verdict.float8_reason:
        console.print(styled(("not compared in float8", "yellow"), f": {verdict.float8_reason}"))
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


def _show(value: float | None, tolerance: float) -> Text:
    if value is None:
        return Text()
    text = "0" if value == 0 else ("inf" if math.isinf(value) else f"{value:.1e}")
    return Text(text, "red" if value > tolerance else "")

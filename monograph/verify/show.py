"""The verdict for a person (a table) and for a program (JSON)."""

import json
import math
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from monograph.parallel.mesh import Mesh
from monograph.verify.compare import Verdict


def print_verdict(verdict: Verdict, mesh: Mesh) -> None:
    """Every module with its largest differences, then one line that says it all."""
    console = Console()
    table = Table(title=f"sharded against one device, largest relative difference (tolerance {verdict.tolerance:.0e})")
    table.add_column("module", overflow="fold")
    for name in ("output", "start", "gradient", "updated", "routing"):
        table.add_column(name, justify="right")
    for row in verdict.rows.values():
        numbers = [_show(v, verdict.tolerance) for v in (row.forward, row.start, row.gradient, row.updated)]
        routing = "" if row.routing is None else ("equal" if not row.routing else f"[red]{row.routing} differ[/red]")
        table.add_row(row.path, *numbers, routing)
    console.print(table)
    console.print(f"loss {verdict.loss:.1e}   gradient norm {verdict.grad_norm:.1e}")
    for entry in verdict.torn:
        console.print(f"[red]ranks disagree:[/red] {entry}")
    if verdict.is_equal:
        console.print(f"[green]equal[/green]: the plan on {mesh.world_size} ranks computes what one device computes")
    else:
        console.print(f"[red]different[/red], first at {verdict.first_difference()}")


def write_verdict(verdict: Verdict, path: Path) -> None:
    """All numbers as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "is_equal": verdict.is_equal,
        "first_difference": verdict.first_difference(),
        "tolerance": verdict.tolerance,
        "loss": verdict.loss,
        "grad_norm": verdict.grad_norm,
        "torn": verdict.torn,
        "modules": [asdict(row) for row in verdict.rows.values()],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _show(value: float | None, tolerance: float) -> str:
    if value is None:
        return ""
    text = "0" if value == 0 else ("inf" if math.isinf(value) else f"{value:.1e}")
    return f"[red]{text}[/red]" if value > tolerance else text

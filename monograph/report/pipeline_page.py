"""The page of a pipeline: a Gantt chart of all ranks, memory per rank, and the stages. One file without scripts."""

from collections.abc import Sequence
from html import escape
from typing import Any

from monograph.parallel.pipeline.actions import ActionKind
from monograph.parallel.pipeline.simulate import Simulation
from monograph.report.units import format_bytes, format_seconds

WIDTH, ROW, LEFT = 1200, 26, 90
COLOURS = {
    ActionKind.FORWARD: "#4c78a8",
    ActionKind.BACKWARD: "#f58518",
    ActionKind.INPUT_GRAD: "#e45756",
    ActionKind.WEIGHT_GRAD: "#72b7b2",
    ActionKind.FORWARD_BACKWARD: "#b279a2",
}
MOST_LABELS = 1500
"""Above this many actions they are drawn without their names."""


def draw_gantt(simulation: Simulation) -> str:
    """All ranks' actions over time, as SVG."""
    scale = (WIDTH - LEFT) / simulation.seconds if simulation.seconds else 0.0
    has_labels = sum(map(len, simulation.spans)) <= MOST_LABELS
    shapes = []
    for rank, spans in enumerate(simulation.spans):
        top = rank * ROW
        shapes.append(f'<text x="0" y="{top + 17}" class="name">rank {rank}</text>')
        for span in spans:
            x, width = LEFT + span.start * scale, max(0.3, (span.end - span.start) * scale)
            colour = COLOURS[span.action.kind]
            times = f"{format_seconds(span.start)} to {format_seconds(span.end)}"
            title = f"<title>{escape(str(span.action))}: {times}</title>"
            box = (
                f'<rect x="{x:.1f}" y="{top + 2}" width="{width:.1f}" height="{ROW - 4}" fill="{colour}">{title}</rect>'
            )
            shapes.append(box)
            if has_labels and width > 6 * len(str(span.action)):
                shapes.append(f'<text x="{x + 2:.1f}" y="{top + 17}" class="label">{escape(str(span.action))}</text>')
    height = ROW * len(simulation.spans)
    return f'<svg viewBox="0 0 {WIDTH} {height}" width="100%">{"".join(shapes)}</svg>'


def make_pipeline_page(report: dict[str, Any], simulation: Simulation) -> str:
    """The whole page."""
    run = report["run"]
    legend = "".join(
        f'<span style="background:{colour}"></span> {kind.name.lower().replace("_", " ")} &nbsp; '
        for kind, colour in COLOURS.items()
        if any(span.action.kind is kind for row in simulation.spans for span in row)
    )
    head = (
        f"<p>{escape(run['recipe'])} on {run['ranks']} ranks, {escape(run['schedule'])}, {run['micro_batches']} "
        f"micro-batches: {format_seconds(simulation.seconds)} an update, of which {simulation.bubble:.1%} is bubble "
        f"(estimated for {escape(run['machine'])})</p>"
    )
    ranks = _table(
        ("rank", "stages", "peak memory", "at", "bubble"),
        [
            (row["rank"], row["stages"], format_bytes(row["peak_bytes"]), row["peak_action"], f"{row['bubble']:.1%}")
            for row in report["ranks"]
        ],
    )
    stages = _table(
        ("stage", "units", "forward", "input grad", "weight grad", "saved", "parameters and state"),
        [
            (
                row["stage"],
                row["units"],
                *(
                    format_seconds(row[name])
                    for name in ("forward_seconds", "input_grad_seconds", "weight_grad_seconds")
                ),
                format_bytes(row["saved_bytes"]),
                format_bytes(row["fixed_bytes"]),
            )
            for row in report["stages"]
        ],
    )
    style = (
        "body{font:14px sans-serif;margin:2em;max-width:1300px}table{border-collapse:collapse;margin:1em 0}"
        "td,th{padding:2px 10px;text-align:right;border-bottom:1px solid #ddd}.name{font:12px sans-serif}"
        ".label{font:10px sans-serif;fill:#fff}span{display:inline-block;width:1em;height:1em;vertical-align:middle}"
    )
    body = f"<h1>Pipeline</h1>{head}{draw_gantt(simulation)}<p>{legend}</p><h2>Ranks</h2>{ranks}<h2>Stages</h2>{stages}"
    return f'<!doctype html><meta charset="utf-8"><title>Pipeline</title><style>{style}</style>{body}'


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{lines}</table>"

"""The last words of a run: what it reached, where its files are, what to try next."""

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from monograph.train.config import TrainerConfig
from monograph.train.trainer import Summary


def print_summary(summary: Summary, config: TrainerConfig) -> None:
    """Print the summary on the terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in summary_rows(summary, config):
        table.add_row(name, text)
    Console().print(Panel(table, title="training finished", title_align="left", expand=False))


def summary_rows(summary: Summary, config: TrainerConfig) -> list[tuple[str, str]]:
    """The summary as (name, text) rows."""
    rows = [("steps", str(summary.steps))]
    if summary.first:
        first, last = summary.first, summary.last
        rows.append(("loss", f"{first['loss']:.4f} (step {first['step']}) -> {last['loss']:.4f} (step {last['step']})"))
        rows.append(("speed", f"{summary.tokens_per_second:,.0f} tokens/s"))
        rows.append(("peak memory", f"{last['peak_memory_gib']:.2f} GiB"))
    else:
        rows.append(("loss", "no step was left to do"))
    if summary.validation_loss is not None:
        rows.append(("held-out loss", f"{summary.validation_loss:.4f}"))
    rows.append(("checkpoint", str(summary.checkpoint) if summary.checkpoint else "none (checkpoint.enabled is false)"))
    rows.append(("metrics", str(summary.metrics)))
    more = config.training.steps * 2
    rows.append(("try next", f"train on: the same command, --checkpoint.load latest --training.steps {more}"))
    rows.append(("", "see every setting: monograph config RECIPE"))
    rows.append(("", "other models: monograph recipes"))
    return rows

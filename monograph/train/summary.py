"""The last words of a run: what it reached, where its files are, what to try next."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.panel import Panel
from rich.table import Table

from monograph.system.console import make_console
from monograph.system.foreign_text import show
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.command_line import CommandLine
from monograph.train.config import TrainerConfig
from monograph.train.goodput import GoodputSummary
from monograph.train.speed import SpeedReport
from monograph.train.validate import Validation


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished run has to say for itself."""

    steps: int
    first: Mapping[str, Any]
    last: Mapping[str, Any]
    speed: SpeedReport
    validation: Validation | None
    checkpoint: Path | None
    metrics: Path
    missing: list[str]
    """What could not be written, on any rank, and why."""
    is_rank_zero: bool
    divergence: str = ""
    """Divergence of the loss or the gradient norm, with what to try; empty for a healthy run."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Where the time of this process went, by kind (goodput.KINDS)."""
    goodput: GoodputSummary | None = None
    """Where the time went, over all starts of the job; None on other ranks than the first."""


def print_summary(summary: Summary, config: TrainerConfig, line: CommandLine) -> None:
    """Print the summary on the terminal."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in summary_rows(summary, config):
        table.add_row(name, show(text, max_length=sys.maxsize))
    console = make_console()
    console.print(Panel(table, title="training finished", title_align="left", expand=False), soft_wrap=False)
    lines = [f"  {text}: {command}" for text, command in find_next(summary, config, line)]
    for text in ("try next", *lines):  # outside of the panel, so that a command can be copied
        console.print(text)


def summary_rows(summary: Summary, config: TrainerConfig) -> list[tuple[str, str]]:
    """The summary as (name, text) rows."""
    rows = [("steps", str(summary.steps))]
    if summary.first:
        first, last = summary.first, summary.last
        rows.append(("loss", f"{first['loss']:.4f} (step {first['step']}) -> {last['loss']:.4f} (step {last['step']})"))
        if summary.divergence:
            rows.append(("warning", summary.divergence))
        rows.append(("speed", summary.speed.describe()))
        rows.append(("time", describe_time(summary)))
        rows.append(("peak memory", f"{last['peak_memory_gib']:.2f} GiB"))
    else:
        rows.append(("loss", "no steps left: the run was complete"))
    if summary.validation is not None:
        rows.append(("validation", summary.validation.describe().removeprefix("validation ")))
    if summary.goodput is not None:
        rows.append(("goodput", summary.goodput.describe()))
    rows.append(("checkpoint", str(summary.checkpoint or f"none ({_explain_none(config.checkpoint)})")))
    rows.append(("metrics", str(summary.metrics)))
    rows += [("missing", text) for text in summary.missing]
    return rows


def describe_time(summary: Summary) -> str:
    """Where the time of this start went, from the first step on, by phase."""
    seconds = summary.seconds
    update = seconds["steps"] * summary.speed.update_share
    parts = {"gradients": seconds["steps"] - update, "updates": update, "waiting for data": seconds["data"]}
    parts |= {"validation": seconds["validation"], "checkpoints": seconds["checkpoint"]}
    return ", ".join(f"{name} {each:.1f} s" for name, each in parts.items())


def find_next(summary: Summary, config: TrainerConfig, line: CommandLine) -> list[tuple[str, str]]:
    """What to try next, as (text, command); each command works as it stands."""
    others = [("see every setting", line.render_config()), ("other models", "monograph recipes")]
    if summary.divergence:
        return [("start again, with a tenth of the learning rate", line.render(start_again(config))), *others]
    changes = {"training.steps": str(2 * max(summary.steps, config.training.steps))}
    if summary.checkpoint is not None:
        changes |= {"checkpoint.load": "latest", "lr_scheduler.on_extend": "redecay"}
        text = "train on"
        if config.checkpoint.initial_load_path:
            others = [*suggest_uses(config.job.dump_folder), others[0]]
    else:
        text = "train longer, with a checkpoint at the end"
        changes |= {"checkpoint.enabled": "true", "checkpoint.save_last": "true", "checkpoint.load": ""}
    if config.checkpoint.load_model_only:
        changes["checkpoint.load_model_only"] = "false"
    return [(text, line.render(changes)), *others]


def suggest_uses(folder: str) -> list[tuple[str, str]]:
    """What a fine-tuned model is for: text from it, and a folder for transformers beside the run's."""
    generate = ["monograph", "generate", folder, "--prompt", "The first thing"]
    export = ["monograph", "hf", "export", folder, f"{folder}-hf"]
    return [("write text with it", shlex.join(generate)), ("export it for transformers", shlex.join(export))]


def start_again(config: TrainerConfig) -> dict[str, str]:
    """Flags of a new run in a folder of its own, from the same weights."""
    changes = {"optimizer.lr": f"{config.optimizer.lr / 10:g}", "job.dump_folder": f"{config.job.dump_folder}-again"}
    if not config.training.max_norm:
        changes["training.max_norm"] = "1"
    if config.checkpoint.load:
        changes["checkpoint.load"] = ""
    return changes


def _explain_none(config: CheckpointConfig) -> str:
    if not config.enabled:
        return "checkpoint.enabled is false"
    if not config.save_last:
        return f"checkpoint.save_last is false and checkpoint.interval is {config.interval}"
    return "none was due"

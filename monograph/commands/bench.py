"""`monograph bench`: measure a step in every mode that was asked for, and show the table."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from monograph.bench import plan_modes, run_modes, write_json
from monograph.commands.table import BENCH_ROOM
from monograph.config.configurable import check_config
from monograph.config.origins import Origin
from monograph.config.references import load_reference
from monograph.execute.device import find_device
from monograph.system.console import make_console
from monograph.train.config import TrainerConfig
from monograph.train.unused_settings import reset_unused

WIDTH = 150
"""Of the table, also where no terminal says how wide it is."""
NARROW = 132
"""Columns of a terminal from which on modes are rows; on a narrower one they are columns."""
SHOWN_PATHS = 24
"""Module paths in the table of a profile; the file beside the trace has all."""


def bench(
    config: TrainerConfig,
    *,
    modes: tuple[str, ...],
    steps: int,
    warmup: int,
    balanced_routing: bool,
    document_tokens: int,
    out: str,
    profile: str,
    words: list[str],
    origins: Mapping[str, Origin],
) -> int:
    """Measure, print a table, write JSON when asked to."""
    if balanced_routing:
        config = balance(config)
    configs = {mode: reset_unused(each, flags=()) for mode, each in plan_modes(config, modes).items()}
    for each in configs.values():
        check_config(each)
    if (device := find_device(config.debug.device)).type == "cuda":
        load_reference(BENCH_ROOM)(configs, device, words, origins)
    counts = {"steps": steps, "warmup": warmup, "document_tokens": document_tokens}
    rows = run_modes(configs, **counts, profile=Path(profile) if profile else None)
    console = make_console(soft_wrap=False)
    is_narrow = console.is_terminal and console.width < NARROW
    if not is_narrow:
        console = make_console(soft_wrap=False, min_width=WIDTH)
    console.print(make_table(rows, is_narrow=is_narrow))
    for row in rows:
        console.print(f"{row.mode}: {row.numerics}", soft_wrap=True)
    for row in rows:
        if row.profile is not None:
            console.print(make_profile_table(row))
    if profile:
        console.print(f"traces for a browser (chrome://tracing, ui.perfetto.dev) are in {profile}")
    if out:
        command = ["monograph", "bench", *words, "--modes", ",".join(modes)]
        command += ["--steps", str(steps), "--warmup", str(warmup)]
        command += ["--document-tokens", str(document_tokens)] if document_tokens else []
        write_json(Path(out), rows, command + ["--balanced-routing"] * balanced_routing)
    return 0


def balance(config: TrainerConfig) -> TrainerConfig:
    """The same with experts that all get the same number of tokens."""
    moe = getattr(config.model, "moe", None)
    assert moe is not None, "checked before torch was imported"
    router = moe.router.replace(force_balance=True)
    return config.replace(model=config.model.replace(moe=moe.replace(router=router)))


def make_table(rows: list[Any], *, is_narrow: bool = False) -> Table:
    """One line a mode, on a narrow terminal one column; the ratio is to the first."""
    caption = "* replayed as a CUDA graph" if any(row.is_recorded for row in rows) else None
    table = Table(title="one step, optimizer included", title_justify="left", caption=caption, caption_justify="left")
    heads = ("mode", "ms", "spread", "tokens/s", f"x {rows[0].mode}", "MFU (full / causal)")
    lines: list[tuple[str, ...]] = [(*heads, "graph TFLOP", "peak GiB", "first step s", "compiled", "loss")]
    lines += [make_cells(row, rows[0]) for row in rows]
    top, *others = zip(*lines, strict=True) if is_narrow else lines
    for number, head in enumerate(top):
        table.add_column(head, justify="right" if number else "left")
    for cells in others:
        table.add_row(*cells)
    return table


def make_cells(row: Any, first: Any) -> tuple[str, ...]:
    """The cells of one mode."""
    return (
        f"{row.mode}{' *' if row.is_recorded else ''}",
        f"{row.ms:.1f}",
        f"{100 * row.spread:.1f} %",
        f"{row.tokens_per_second:,.0f}",
        f"{row.tokens_per_second / first.tokens_per_second:.2f}",
        "-" if row.mfu is None else f"{100 * row.mfu:.1f} / {100 * row.mfu_causal:.1f} %",
        "-" if row.graph_tflops is None else f"{row.graph_tflops:.3g}",
        "-" if row.peak_gib is None else f"{row.peak_gib:.2f}",
        f"{row.first_step_seconds:.1f}",
        str(row.compilations),
        f"{row.loss:.5f}",
    )


def make_profile_table(row: Any) -> Table:
    """Kinds and paths side by side, the longest first."""
    table = Table(title=f"{row.mode}: {row.profile.ms:.1f} ms of kernels a step", title_justify="left")
    for head in ("kind", "ms", "calls", "module", "ms", "calls"):
        table.add_column(head, justify="left" if head in ("kind", "module") else "right", overflow="fold")
    for kind, path in itertools.zip_longest(row.profile.by_kind, row.profile.by_path[:SHOWN_PATHS]):
        cells = [[each.name, f"{each.ms:.2f}", f"{each.calls:.0f}"] if each else [""] * 3 for each in (kind, path)]
        table.add_row(*cells[0], *cells[1])
    return table

"""Names from outside on consoles: no terminal code is obeyed, no markup is taken for ours, no line is forged."""

import io
import logging
import sys
from pathlib import Path

import pytest
from rich.table import Table

from monograph.commands.terminal import print_error, print_rows, print_title
from monograph.errors import ConfigError
from monograph.launch.local import LaunchFailure, show_reason
from monograph.log import get_log, set_up_log
from monograph.parallel.mesh import Mesh
from monograph.report.page import make_run_page
from monograph.system.console import make_console, print_content, print_plain
from monograph.train.command_line import CommandLine
from monograph.train.progress import ProgressView
from monograph.train.summary import print_summary
from monograph.verify.compare import Differences, ModuleRow
from monograph.verify.show import print_verdict
from monograph.verify.trace import RankMismatch
from monograph.verify.verdict import Verdict
from monograph.watch.runs import collect_runs, make_readers
from tests.kit.runs import tiny_run
from tests.train.test_suggestions import make_summary

HOSTILE = "[/]\x1b[2J\r\a\u202e[red]x"
SHOWN = r"[/]\x1b[2J\r\x07\u202e[red]x"
"""Without the colour codes of ours; the same characters as text."""


def is_harmless(text: str) -> bool:
    return not set("\x1b\r\a\u202e") & set(text)


def print_a_table():
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    make_console(soft_wrap=False, min_width=150).print(table)


def print_a_summary():
    config = tiny_run(Path("run"), {"job.dump_folder": HOSTILE})
    print_summary(make_summary(missing=[f"{HOSTILE} cannot be written"]), config, CommandLine([HOSTILE]))


def print_a_verdict():
    verdict = Verdict(tolerance=1e-5, uncovered=(HOSTILE,), float8_reason=HOSTILE, blame=HOSTILE, numerics=HOSTILE)
    differences = Differences(
        rows={HOSTILE: ModuleRow(path=HOSTILE, forward=1.0, routing=2)}, metrics={HOSTILE: 1.0}, mismatches=[]
    )
    differences.mismatches.append(RankMismatch(name=HOSTILE, kind="start"))
    verdict.all = differences
    print_verdict(verdict, Mesh())


PRINTERS = {
    "text": lambda: make_console().print(HOSTILE),
    "plain text": lambda: print_plain(HOSTILE),
    "table": print_a_table,
    "rows": lambda: print_rows([[HOSTILE, HOSTILE]], ("bold", "none")),
    "title": lambda: print_title(HOSTILE, HOSTILE),
    "error": lambda: print_error(ConfigError(HOSTILE, why=HOSTILE, do=HOSTILE)),
    "summary of a run": print_a_summary,
    "verdict": print_a_verdict,
}


@pytest.mark.parametrize("name", PRINTERS)
def test_names_with_codes_and_markup_are_printed_as_text(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "150")
    PRINTERS[name]()
    printed = "".join(capsys.readouterr())
    assert SHOWN in printed and is_harmless(printed)


def test_the_end_of_a_failed_ranks_log_is_shown_as_text(tmp_path, capsys):
    log = tmp_path / "launch" / "attempt_0" / "1" / "stderr.log"
    log.parent.mkdir(parents=True)
    log.write_text(f"Traceback (most recent call last)\nValueError: {HOSTILE}\n", newline="")
    show_reason(LaunchFailure(1, {1: 1}), tmp_path)
    printed = capsys.readouterr().err
    assert r"[/]\x1b[2J" in printed and r"\x07\u202e[red]x" in printed and is_harmless(printed)


def test_a_progress_bar_moves_the_cursor_itself_and_lets_no_name_do_so(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    console = make_console(soft_wrap=False)
    console.file, console._force_terminal, console.width = io.StringIO(), True, 100
    view = ProgressView("bar", steps=2, done=0, interval=1, console=console)
    record = {"step": 1, "loss": 1.0, "grad_norm": 1.0, "ms": 1.0, "tokens_per_second": 1.0}
    view.step(record)
    console.print(HOSTILE)
    view.close()
    assert SHOWN in console.file.getvalue() and console.file.getvalue().startswith("\x1b[?25l")


def test_a_line_break_in_a_name_begins_no_line_of_ours(capsys):
    forged = "name\n01:00:00 I all is well"
    print_error(ConfigError(forged, why=forged, do=forged))
    print_rows([[forged, forged], ["b", "c"]], ("bold", "none"))
    said = capsys.readouterr()
    assert not [line for line in (said.err + said.out).splitlines() if line.startswith("01:")]
    assert len(said.out.splitlines()) == 2


@pytest.mark.parametrize("is_terminal", [True, False])
def test_what_a_model_writes_is_escaped_on_a_terminal_and_unchanged_in_a_file(is_terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    print_content(f"line\n\t{HOSTILE}")
    assert capsys.readouterr().out == f"line\n\t{SHOWN if is_terminal else HOSTILE}\n"


def test_pages_show_codes_and_directions_as_text(tmp_path):
    folder = tmp_path / f"run{HOSTILE.replace('/', '')}"
    (folder / "logs").mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("")
    (folder / "logs" / "rank-0.log").write_text(f"01:00:00 W {HOSTILE}\n", newline="")
    page = make_run_page(collect_runs(make_readers([folder]), is_live=False))
    assert page.count(r"\\x1b[2J\\r\\x07\\u202e[red]x") == 2
    assert not {r"\u001b", r"\u202e", r"\u0007"} & set(page.replace("\\\\", "").split('"'))


def test_a_log_shows_markup_as_it_is(capsys):
    set_up_log()
    get_log("data").log(logging.WARNING, "%s", HOSTILE)
    assert SHOWN in capsys.readouterr().err

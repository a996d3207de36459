"""Text from outside is printed as text: colours are ours alone."""

import errno
import os
import re
import sys

import pytest
from rich.text import Text

from monograph.cli import main
from monograph.commands.terminal import print_error, print_rows
from monograph.errors import ConfigError
from monograph.system.console import make_console, print_plain

HOSTILE = "a\x1b[2J\x07\u202eb"
SHOWN = r"a\x1b[2J\x07\u202eb"


def test_errors_and_plain_text_are_printed_without_terminal_codes(capsys):
    print_error(ConfigError(HOSTILE, why=f"{HOSTILE}\nand more", do=HOSTILE))
    print_plain(f"{HOSTILE}\n\tmore")
    said = capsys.readouterr()
    assert said.err.count(SHOWN) == 3 and said.out == f"{SHOWN}\n\tmore\n"
    assert "\x1b" not in said.err


def test_a_traceback_gives_no_orders_to_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert main(["--version"]) == 0
    sys.excepthook(ValueError, ValueError(f"{HOSTILE}\nand more"), None)
    assert capsys.readouterr().err == f"ValueError: {SHOWN}\nand more\n"


def test_our_own_colours_stay_and_foreign_ones_do_not(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    print_rows([[HOSTILE, HOSTILE], ["b", ""]], ("bold cyan", "none"))
    make_console().print(Text("\x1b[2J", style="bold red"))
    said = capsys.readouterr().out
    assert said.count(SHOWN) == 2 and "\x1b[1;36m" in said and "\x1b[1;31m" in said
    assert "\x1b[2J" not in said and "\u202e" not in said


def test_a_full_disk_behind_standard_output_is_told_by_its_name(monkeypatch, capsys):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("allow_any_text", "drop_output"):
        monkeypatch.setattr(f"monograph.cli.{name}", lambda: None)
    for name in ("write", "flush"):
        with monkeypatch.context() as full:
            full.setattr(sys.stdout, name, refuse)
            assert main(["--version"]) == 1
        assert "error: standard output cannot be written" in capsys.readouterr().err


@pytest.fixture
def narrow_terminal(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    return lambda text: [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in text.splitlines()]


def test_a_narrow_terminal_shows_details_below_the_name_they_belong_to(narrow_terminal, capsys):
    prose = "Copy the forward nodes that are not saved into backward."
    rows = [("recompute", "bitwise", prose), ("", "needs", "a plan")]
    print_rows(rows, ("bold cyan", "green", "none"))
    lines = narrow_terminal(capsys.readouterr().out)
    name, prose, rest, detail, value = lines
    assert name == "  recompute  bitwise" and prose.startswith("      Copy") and rest.startswith("      backward.")
    assert (detail, value) == ("      needs", "          a plan")


def test_columns_that_fit_a_narrow_terminal_stay_columns(narrow_terminal, capsys):
    print_rows([("A100", "14.4", "231"), ("H100-PCIe", "37.7", "560")], ("bold", "", ""))
    lines = narrow_terminal(capsys.readouterr().out)
    assert lines == ["  A100       14.4  231", "  H100-PCIe  37.7  560"]

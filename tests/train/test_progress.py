"""What a person sees while training."""

import io
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console

from monograph.log import set_up_log
from monograph.run import train
from monograph.train.progress import ProgressView
from tests.kit.runs import tiny_run


@pytest.fixture(autouse=True)
def log():
    set_up_log()


def record(step, *, ms=1000.0, **more):
    return {"step": step, "loss": 2.5, "grad_norm": 0.125, "tokens_per_second": 12345.6, "ms": ms, **more}


def show(style, steps, records, *, done=0, interval=10, console=None):
    view = ProgressView(style, steps=steps, done=done, interval=interval, console=console)
    for each in records:
        view.step(each)
    view.close()
    return view


def lines_of(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if "step" in line]


def test_lines_come_at_the_first_step_at_every_interval_and_at_the_last(capsys):
    show("lines", 25, [record(step) for step in range(1, 26)])
    assert [re.search(r"step +(\d+)/25", line)[1] for line in lines_of(capsys)] == ["1", "10", "20", "25"]


def test_a_resumed_run_speaks_at_its_own_first_step(capsys):
    show("lines", 30, [record(step) for step in range(13, 16)], done=12)
    (line,) = lines_of(capsys)
    assert "step 13/30" in line


def test_a_line_has_loss_norm_speed_memory_and_time_left(capsys):
    show("lines", 100, [record(40, ms=60_000.0, mfu=0.412, peak_memory_gib=1.5, lr=3e-4)], done=39)
    (line,) = lines_of(capsys)
    assert line.endswith(
        "step  40/100  loss 2.5000  grad norm 0.125  lr 3.00e-04  12,346 tokens/s  MFU 41.2 %  1.50 GiB  ETA 1:00:00"
    )


def test_a_line_has_the_speed_of_all_steps_since_the_last_one(capsys):
    window = {"window_tokens_per_second": 777.0, "window_mfu": 0.25}
    show("lines", 100, [record(40, mfu=0.412, **window)], done=39)
    (line,) = lines_of(capsys)
    assert "777 tokens/s  MFU 25.0 %" in line


def test_an_unknown_mfu_is_left_out(capsys):
    show("lines", 100, [record(1, mfu=None)])
    assert "MFU" not in lines_of(capsys)[0]


def test_the_time_left_forgets_a_slow_first_step(capsys):
    steps = [record(1, ms=60_000.0), *(record(step, ms=1000.0) for step in range(2, 41))]
    show("lines", 100, steps, interval=20)
    assert [re.search(r"ETA (.*)", line)[1] for line in lines_of(capsys)] == ["1:39:00", "0:02:28", "0:01:00"]


def test_off_says_nothing(capsys):
    show("off", 2, [record(1), record(2)])
    assert capsys.readouterr().err == ""


def test_the_bar_shows_how_far_the_run_is_and_the_same_numbers_as_the_lines():
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=160)
    show("bar", 50, [record(21, ms=2000.0, peak_memory_gib=1.5)], done=20, console=screen)
    last = [line for line in screen.file.getvalue().splitlines() if "training" in line][-1]
    assert "21/50 ETA 0:00:58 loss 2.5000  grad norm 0.125  12,346 tokens/s  1.50 GiB" in last


def test_on_a_narrow_terminal_the_bar_stays_on_one_line_and_keeps_what_matters_most():
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=80)
    show("bar", 100_000, [record(21, ms=2000.0, peak_memory_gib=1.5)], console=screen)
    shown = screen.file.getvalue().splitlines()
    bars = [line for line in shown if "training" in line]
    assert bars[-1].endswith("21/100000 ETA 55:32:38 loss 2.5000  12,346 tokens/s")
    assert all(len(line.replace("\x1b[?25l", "").strip("\r")) <= 100 for line in bars)


def test_the_lines_stay_above_the_bar():
    """They are printed once each and never erased: what a terminal keeps in its scrollback."""
    screen = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=160)
    show("bar", 30, [record(step, lr=1e-3) for step in range(1, 31)], console=screen, interval=10)
    shown = screen.file.getvalue()
    lines = re.findall(r" I step +(\d+)/30  loss 2.5000  grad norm 0.125  lr 1.00e-03", shown)
    assert lines == ["1", "10", "20", "30"]
    assert shown.rindex("30/30 ETA") > shown.rindex(" I step 30/30"), "the bar is drawn again below"


@pytest.mark.parametrize(("is_terminal", "style"), [(True, "bar"), (False, "lines")])
def test_auto_shows_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch, is_terminal, style):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)
    assert show("auto", 2, []).style == style


def test_a_run_tells_where_the_time_before_its_first_step_went_and_then_its_steps(tmp_path, capsys):
    train(tiny_run(tmp_path, {"metrics.progress": "lines", "debug.log_level": "info", "validator.interval": 3}))
    shown = capsys.readouterr().err
    table = re.findall(r" I   (\S[\S ]*?) +(\d+\.\d\d) s$", shown, flags=re.M)
    names = [name for name, _ in table]
    assert names[0] == "import" and names[-1] == "total"
    assert {"data", "model", "first step"} <= {*names}
    assert float(table[-1][1]) == pytest.approx(sum(float(seconds) for _, seconds in table[:-1]), abs=0.01 * len(table))
    said = ("time to the first step", "step 1/3", "step 3/3", "step 3: validation loss")
    order = [shown.index(text) for text in said]
    assert order == sorted(order) and shown.count("time to the first step") == 1
    assert "content hash" in shown


@pytest.mark.long
def test_a_terminal_keeps_the_step_lines_and_shows_the_bar(tmp_path):
    """A real terminal of the system, with a real run in it."""
    words = ["train", "tests.kit.runs:tiny", "--training.steps", "12", "--metrics.log_interval", "4"]
    words += ["--metrics.progress", "auto", "--debug.log_level", "info", "--job.dump_folder", str(tmp_path / "run")]
    controller, terminal = os.openpty()
    process = subprocess.Popen([sys.executable, "-m", "monograph", *words], stdout=terminal, stderr=terminal)
    os.close(terminal)
    shown = b""
    while True:
        try:
            piece = os.read(controller, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode(errors="replace"))
    assert re.findall(r" I step +(\d+)/12 .*lr \d", text) == ["1", "4", "8", "12"]
    assert "training ━" in text and "training finished" in text

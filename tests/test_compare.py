"""`monograph compare`: what it runs, what it calls equal, and how it says where two runs part."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import monograph.commands.compare as command
from monograph.cli import main

TINY = "tests.kit.runs:tiny"
SAME = [{"step": step, "loss": 5.0 - step, "grad_norm": 1.0 + step} for step in (1, 2, 3)]


def changed(step, **values):
    """The same records but for some numbers of one step."""
    return [record | values if record["step"] == step else record for record in SAME]


@pytest.fixture
def pretend(monkeypatch):
    """Runs that write given records instead of training; returns the command lines that were started."""

    def install(*runs, exit_code=0, says=""):
        started, waiting = [], list(runs)

        def start(words, **_options):
            started.append(words)
            folder = Path(words[words.index("--job.dump_folder") + 1])
            folder.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(record) for record in [*waiting.pop(0), {"step": 3, "validation_loss": 1.0}]]
            (folder / "metrics.jsonl").write_text("\n".join(lines))
            (folder / "numerics.txt").write_text(f"promise of {folder.name}\n")
            return exit_code, says

        monkeypatch.setattr(command, "run_and_follow", start)
        return started

    return install


def test_runs_with_the_same_numbers_are_equal(pretend, capsys):
    started = pretend(SAME, SAME)
    assert main(["compare", f"{TINY} --debug.seed 1", f"{TINY} --ranks 2"]) == 0
    out = capsys.readouterr().out
    assert "equal bit for bit: loss and gradient norm of 3 steps" in out
    assert [line for line in out.splitlines() if "numerics" in line] == [
        f"numerics promised by the {side} run: promise of {side}" for side in ("left", "right")
    ]
    left, right = (words[words.index("train") :] for words in started)
    assert left[:4] == ["train", TINY, "--debug.seed", "1"]
    assert right[:4] == ["train", TINY, "--ranks", "2"]
    for words in (left, right):
        assert words[-4::2] == ["--job.dump_folder", "--checkpoint.enabled"], "a comparison leaves nothing behind"
    assert left[-3] != right[-3]


@pytest.mark.parametrize("name", ["loss", "grad_norm"])
def test_the_first_number_that_differs_in_its_last_bit_is_named_with_its_step(pretend, capsys, name):
    value = SAME[1][name]
    other = changed(2, **{name: value * (1 + 2**-52)})
    other = [record | {"loss": 0.0} if record["step"] == 3 else record for record in other]
    pretend(SAME, other)
    assert main(["compare", TINY, TINY]) == 1
    lines = capsys.readouterr().out.splitlines()[2:]
    assert lines[-1].startswith(f"different: step 2, {name}: {value!r} and {value * (1 + 2**-52)!r}")
    assert "DIFFERS" not in lines[0] and "DIFFERS" in lines[1]


def test_a_tolerance_is_relative_and_its_border_counts(pretend, capsys):
    near, far = changed(2, loss=3.0 * (1 + 0.9e-5)), changed(2, loss=3.0 * (1 + 1.1e-5))
    words = ["compare", TINY, TINY, "--tolerance", "1e-5"]
    pretend(SAME, near)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "equal within 1e-05" in out and "within  grad_norm" in out and "DIFFERS" not in out
    pretend(SAME, far)
    assert main(words) == 1
    assert "different: step 2, loss" in capsys.readouterr().out


def test_a_run_that_failed_is_shown_and_the_other_is_not_started(pretend, capsys):
    started = pretend([], [], exit_code=3, says="first\nRuntimeError: out of luck")
    assert main(["compare", f"{TINY} --debug.seed 7", TINY]) == 1
    shown = capsys.readouterr().err
    assert f"monograph train {TINY} --debug.seed 7" in shown
    assert "it ended with exit code 3" in shown and "RuntimeError: out of luck" in shown
    assert len(started) == 1


def test_the_logs_of_a_run_that_failed_are_kept_and_the_error_says_where(pretend, capsys):
    started = pretend([], [], exit_code=-6, says="first\nterminate called\n" + "\n".join(map(str, range(200))))
    assert main(["compare", TINY, TINY]) == 1
    folder = Path(started[0][started[0].index("--job.dump_folder") + 1])
    shown = capsys.readouterr().err
    assert "it was killed by SIGABRT (exit code -6)" in shown
    assert f"the logs are kept in {folder.parent}\n" in shown
    assert (folder / "metrics.jsonl").exists(), "the run's own folder"
    assert "terminate called" in (folder.parent / "left-output.log").read_text(), "and all that it printed"
    shutil.rmtree(folder.parent)


def test_nothing_is_left_of_runs_that_ended_well_or_were_interrupted(pretend, monkeypatch):
    started = pretend(SAME, changed(2, loss=1.0))
    assert main(["compare", TINY, TINY]) == 1
    assert not Path(started[0][started[0].index("--job.dump_folder") + 1]).parent.exists()
    started = pretend(SAME, SAME)
    monkeypatch.setattr(command, "read_records", interrupt)
    assert main(["compare", TINY, TINY]) == 130
    assert not Path(started[0][started[0].index("--job.dump_folder") + 1]).parent.exists()


def interrupt(_path):
    raise KeyboardInterrupt


def test_a_run_without_metrics_is_an_error_that_names_the_file(monkeypatch, capsys):
    monkeypatch.setattr(command, "run_and_follow", lambda _: (0, ""))
    assert main(["compare", TINY, TINY]) == 1
    assert "metrics.jsonl is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (f"{TINY} --training.stepz 3", "training.steps"),
        (f"{TINY} --training.steps 4", "one run has 3 steps and the other 4"),
        (f"{TINY} --ranks 3 --parallelism.tensor_parallel_degree 2", "tensor_parallel_degree 2"),
        (f"{TINY} --compile.mode layer --parallelism.fsdp graph", "parallelism.fsdp is graph"),
        (f"{TINY} --job.description 'open", "no closing quotation"),
        ("llama3_debugmode", "llama3_debugmodel"),
        ("", "a recipe is missing"),
    ],
)
def test_a_mistake_in_the_second_line_shows_before_anything_runs(pretend, capsys, right, said):
    started = pretend(SAME, SAME)
    assert main(["compare", TINY, right]) == 2
    assert said in capsys.readouterr().err
    assert started == []


def test_a_folder_given_in_a_line_is_kept_and_read(pretend, capsys, tmp_path):
    started = pretend(SAME, SAME)
    assert main(["compare", TINY, f"{TINY} --job.dump_folder {shlex.quote(str(tmp_path / 'mine'))}"]) == 0
    assert started[1].count("--job.dump_folder") == 1
    assert (tmp_path / "mine" / "metrics.jsonl").exists()


def test_runs_whose_steps_are_not_the_same_cannot_be_compared(pretend, capsys):
    pretend(SAME, SAME[1:])
    assert main(["compare", TINY, TINY]) == 1
    assert "one run wrote 3 steps (1 to 3) and the other 2 steps (2 to 3)" in capsys.readouterr().err


@pytest.mark.long
def test_each_line_has_ranks_of_its_own(capsys):
    line = f"{TINY} --training.global_batch_size 2 --training.local_batch_size 1"
    assert main(["compare", line, f"{line} --ranks 2", "--tolerance", "1e-5"]) == 0
    out = capsys.readouterr().out
    assert "equal within 1e-05" in out and "within  grad_norm" in out and "DIFFERS" not in out


def test_a_long_run_shows_its_newest_step_meanwhile(monkeypatch, capsys):
    monkeypatch.setattr(command, "PROGRESS_SECONDS", 0.0)
    code = "print('08:00:00 I step   1/9  loss 6.3', flush=True); print('other'); raise SystemExit(3)"
    assert command.run_and_follow([sys.executable, "-c", code]) == (3, "08:00:00 I step   1/9  loss 6.3\nother\n")
    assert capsys.readouterr().err == "  08:00:00 I step   1/9  loss 6.3\n"

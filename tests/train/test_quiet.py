"""What a run prints on request: nothing, or that it was stopped; a clean stop is no error."""

import shlex

import pytest

from monograph.cli import main
from monograph.commands.terminal import print_error
from monograph.errors import ConfigError
from monograph.train import trainer
from monograph.train.signals import StoppedOnRequest
from tests.kit.runs import read_records

TRAIN = "train tests.kit.runs:tiny --training.steps 2 --lr_scheduler.warmup_steps 0"


def run(line, capsys):
    code = main(shlex.split(line))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize("flag", ["--quiet", "--quiet true"])
def test_a_quiet_run_prints_nothing(tmp_path, monkeypatch, capsys, flag):
    monkeypatch.chdir(tmp_path)
    loud = "--metrics.progress lines --debug.log_level info"
    assert "training finished" in run(f"{TRAIN} {loud}", capsys)[1]
    assert run(f"{TRAIN} --validator.interval 1 --validator.samples 1 {flag}", capsys) == (0, "", "")
    assert len([record for record in read_records(tmp_path / "outputs") if "loss" in record]) == 2


def test_a_quiet_run_that_fails_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(f"{TRAIN} --quiet --dataloader.dataset nowhere.txt", capsys)
    assert (code, out) == (2, "") and err.startswith("error: the dataset 'nowhere.txt' does not exist")


def test_a_clean_stop_is_not_called_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trainer.Trainer, "_leave_if_asked", stop)
    code, _, err = run(TRAIN, capsys)
    assert code == 75 and "stopped: SIGTERM: stopped after step 1" in err and "error" not in err
    assert "to continue: monograph train tests.kit.runs:tiny" in err


def stop(*_):
    raise StoppedOnRequest("SIGTERM: stopped after step 1", do="continue with --checkpoint.load latest")


def test_an_error_is_called_one(capsys):
    print_error(ConfigError("no"))
    assert capsys.readouterr().err == "error: no\n"

"""The loop of all fuzzers: it goes on until the count is up, stops at a failure and says how to repeat it."""

import sys

import pytest

from tests.kit.fuzzing import FEW, REFUSED, Failed, run_fuzzer


def start(monkeypatch, check, *words):
    monkeypatch.setattr(sys, "argv", ["fuzz", *words])
    run_fuzzer("tests.some.fuzz", check)


def test_labels_are_counted_over_all_seeds(monkeypatch, capsys):
    start(monkeypatch, lambda seed, _folder: ["even" if seed % 2 == 0 else "odd"], "--first", "3", "--count", "5")
    out = capsys.readouterr().out
    assert "     2  even" in out and "     3  odd" in out
    assert "5 of 5 seeds held (from 3)" in out


def fail_at_4(seed, _folder):
    if seed == 4:
        raise Failed("planted")
    return ["fine"]


def test_a_failure_ends_the_run_and_prints_what_repeats_it(monkeypatch, capsys):
    with pytest.raises(SystemExit, match=r"failed: \[4\]"):
        start(monkeypatch, fail_at_4, "--first", "3", "--count", "5")
    out = capsys.readouterr().out
    assert "Failed: planted" in out and "repeat: python -m tests.some.fuzz --seed 4" in out
    assert "seed 5" not in out
    with pytest.raises(SystemExit, match=r"failed: \[4\]"):
        start(monkeypatch, fail_at_4, "--first", "3", "--count", "5", "--go-on")
    assert "seed 7: fine" in capsys.readouterr().out


def test_one_seed_is_checked_alone(monkeypatch, capsys):
    start(monkeypatch, fail_at_4, "--seed", "0")
    assert "1 of 1 seeds held (from 0)" in capsys.readouterr().out


def test_a_mode_is_a_flag_that_a_failure_repeats(monkeypatch, capsys):
    def plain(seed, _folder):
        """Check nothing."""
        return ["plain"]

    monkeypatch.setattr(sys, "argv", ["fuzz", "--first", "4", "--count", "1", "--agree"])
    with pytest.raises(SystemExit, match=r"failed: \[4\]"):
        run_fuzzer("tests.some.fuzz", plain, agree=fail_at_4)
    assert "repeat: python -m tests.some.fuzz --agree --seed 4" in capsys.readouterr().out
    start(monkeypatch, plain, "--seed", "4")
    assert "     1  plain" in capsys.readouterr().out


def test_a_fuzzer_most_of_whose_draws_are_refused_fails(monkeypatch):
    def refuse_some(seed, _folder):
        return [REFUSED] if seed % 5 == 0 else []

    with pytest.raises(SystemExit, match="draws were refused"):
        start(monkeypatch, refuse_some, "--first", "0", "--count", str(FEW))

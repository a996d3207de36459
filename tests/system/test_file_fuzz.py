"""A few damaged files and folders (`make test-fuzz` runs thousands), and that the fuzzer finds what it looks for."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.fuzzing import Failed
from tests.system import file_fuzz
from tests.system.file_fuzz import ACCEPTED, REFUSED_IN_WORDS, Ended, FileFuzzer
from tests.system.file_mutations import CONTENTS, SHAPES

SEEDS = 20
USUAL = Ended(0, "", 1.0, 300 << 20)


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory):
    return FileFuzzer(tmp_path_factory.mktemp("fuzz"))


def test_damaged_and_odd_files_work_or_are_refused_in_words(fuzzer):
    seen = [label for seed in range(SEEDS) for label in fuzzer.check_seed(seed)]
    assert seen.count(ACCEPTED) + seen.count(REFUSED_IN_WORDS) == SEEDS
    assert seen.count(ACCEPTED) > 3 and seen.count(REFUSED_IN_WORDS) > 3
    assert len({*CONTENTS, *SHAPES} & {*seen}) > 8


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        ({"code": 1, "said": "Traceback (most recent call last):\nerror: run/config.json"}, "a traceback"),
        ({"code": 2, "said": "error: it is no JSON"}, "the file is not named"),
        ({"code": 2, "said": "config.json"}, "no error in words"),
        ({"code": -9, "said": "", "waited": 61.0}, r"exit code -9 \(a hang\)"),
        ({"code": -7, "said": "config.json"}, "exit code -7"),
        ({"seconds": 3.1}, "s of the processor"),
        ({"bytes": 401 << 20}, "401 MiB"),
        ({"said": "W \x1b[2J"}, "terminal codes"),
    ],
)
def test_every_other_outcome_is_a_failure(ended, problem):
    said = "; ".join(file_fuzz._find_problems(replace(USUAL, **ended), USUAL, Path("run/config.json")))
    assert re.search(problem, said)


def test_a_changed_file_of_the_user_is_a_failure(fuzzer, monkeypatch, tmp_path):
    def harm(command, home):
        if home.name.startswith("case"):
            (home / "precious" / "a.txt").write_text("")
        return USUAL

    monkeypatch.setattr(file_fuzz, "run_command", harm)
    monkeypatch.setattr(fuzzer, "usual", {})
    monkeypatch.setattr(fuzzer, "folder", tmp_path)  # where other processes read what is usual
    with pytest.raises(Failed, match=r"precious/a\.txt was changed"):
        list(fuzzer.check_seed(1))


def test_commands_run_without_the_privileges_of_root(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    os.chown(tmp_path / "secret", *([54321, 54321] if os.geteuid() == 0 else [-1, -1]))
    ended = file_fuzz.run_command("machine show secret.json", tmp_path)
    assert ended.code == 2
    (tmp_path / "secret").rename(tmp_path / "secret.json")
    ended = file_fuzz.run_command("machine show secret.json", tmp_path)
    assert ended.code == 2 and "Permission denied" in ended.said

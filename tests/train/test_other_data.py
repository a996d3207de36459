"""Other data on resume is refused with flags that go on with the old, and flags that begin anew with the new."""

import shlex

import pytest

from monograph.cli import main
from tests.kit.runs import find_steps, read_records, write_texts

RUN = (
    "train tests.kit.runs:tiny_dense --dataloader.dataset texts.jsonl --training.steps 1 --lr_scheduler.warmup_steps 0"
)
MORE = "--training.steps 2 --lr_scheduler.on_extend redecay --checkpoint.load latest"


def begin(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts.jsonl", ["some words to learn " * 20] * 8)
    assert main(RUN.split()) == 0


def refuse(line, capsys):
    """What the refusal says to do."""
    assert main(line.split()) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the data is not the data of the saved run" in said
    return said


def test_more_data_is_refused_with_flags_of_a_new_run_from_the_weights(tmp_path, monkeypatch, capsys):
    begin(tmp_path, monkeypatch)
    write_texts(tmp_path / "texts.jsonl", ["some words to learn " * 20] * 9)
    said = refuse(f"{RUN} {MORE}".replace("--training.steps 1 ", ""), capsys)
    why, _, do = said.partition("do: ")
    digits = [word for word in why.split() if word.startswith("'")]
    assert digits and all(len(word.strip("';")) == 12 for word in digits), "hashes are told apart by a few digits"
    flags, found, _ = do.partition(" for a new run")
    assert found and "to go on" not in do, "no setting has changed"
    assert main([*RUN.split(), *shlex.split(flags)]) == 0
    assert read_records(tmp_path / "outputs-more")[0]["step"] == 1
    assert find_steps(tmp_path / "outputs") == [1], "the old run stays as it is"


@pytest.mark.parametrize(
    ("change", "before"),
    [
        ("--debug.seed 5", "--debug.seed 42"),
        ("--training.seq_len 16", "--training.seq_len 32"),
        ("--dataloader.shuffle false", "--dataloader.shuffle true"),
        ("--dataloader.dataset others.jsonl", "--dataloader.dataset texts.jsonl"),
    ],
)
def test_changed_settings_are_named_with_the_flags_that_go_on(tmp_path, monkeypatch, capsys, change, before):
    begin(tmp_path, monkeypatch)
    write_texts(tmp_path / "others.jsonl", ["other words to learn " * 20] * 8)
    base = f"{RUN} {MORE}".replace("--training.steps 1 ", "")
    flag = change.split()[0]
    line = base.replace("--dataloader.dataset texts.jsonl", "") if flag in base else base
    said = refuse(f"{line} {change}", capsys)
    assert f"do: {before} to go on; or " in said
    assert main([*line.split(), *before.split()]) == 0

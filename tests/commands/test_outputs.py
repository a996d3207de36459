"""Two commands that write the same output: the second is refused, before it has done any work."""

import os

import pytest

from monograph.cli import main
from monograph.locks.folder_lock import locked_output
from tests.kit.runs import write_texts


@pytest.mark.parametrize(
    "words",
    [
        "precompile llama3_debugmodel --out {out}",
        "precompile llama3_debugmodel --out {out} --overwrite",
        "inspect llama3_debugmodel --out {out}",
        "data pack {texts} {out}",
        "hf import {model} {out}",
    ],
)
def test_an_output_that_is_being_written_is_refused_with_the_process_that_writes_it(tmp_path, capsys, words):
    out, texts, model = tmp_path / "out", tmp_path / "texts.jsonl", tmp_path / "model"
    write_texts(texts, ["some text"])
    model.mkdir()
    (model / "config.json").write_text("{}")
    with locked_output(out):
        assert main(words.format(out=out, texts=texts, model=model).split()) == 2
    assert f"{out} is being written by process {os.getpid()} on " in capsys.readouterr().err
    assert not out.exists()


def test_an_output_is_free_again_after_a_command_failed(tmp_path, capsys):
    words = ["data", "pack", str(tmp_path / "absent.txt"), str(tmp_path / "out")]
    for _ in range(2):
        assert main(words) == 2
        assert "does not exist" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

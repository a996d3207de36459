"""Two commands that write the same output: the second is refused, before it has done any work."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

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
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    more = {"num_key_value_heads": 2, "vocab_size": 16, "rms_norm_eps": 1e-5, "max_position_embeddings": 16}
    (model / "config.json").write_text(json.dumps({"model_type": "llama", "rope_theta": 1e4, **sizes, **more}))
    save_file({"weight": torch.zeros(1)}, model / "model.safetensors")
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

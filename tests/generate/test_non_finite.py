"""A model that computes NaN is an error that says where, not a text that ends at once or a perplexity of nothing."""

import os
import shlex

import pytest
import torch
from safetensors.torch import load_file, save_file

from monograph.cli import main
from monograph.errors import MonographError
from monograph.generate.load import load_model
from monograph.generate.loop import Generation, check_logits
from monograph.generate.perplexity import measure
from monograph.train.checkpoint.model_source import open_source
from tests.kit.pretrained import write_pretrained, write_texts

CPU = torch.device("cpu")
TRAIN = shlex.split("""
    --training.steps 1 --compile.mode eager --debug.device cpu --dataloader.dataset texts --training.seq_len 32
    --training.local_batch_size 2 --validator.interval 0 --metrics.progress off --job.dump_folder run
""")
NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with one NaN, one that overflows float16, and texts."""
    place = tmp_path_factory.mktemp("non_finite")
    for name, value in (("nan", torch.nan), ("large", 6e4)):
        write_pretrained(place / name, "llama")
        tensors = load_file(place / name / "model.safetensors")
        tensors[NAME][3] = value
        tensors["model.layers.1.post_attention_layernorm.weight"][:] = 1e3
        save_file(tensors, place / name / "model.safetensors", metadata={"format": "pt"})
    write_texts(place / "texts")
    return place


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "nan", "--prompt", "a"],
        ["generate", "nan", "--prompt", "a", "--temperature", "1"],
        ["evaluate", "nan", "--data", "texts"],
        ["hf", "import", "nan", "out"],
        ["train", "--model.from", "nan", *TRAIN],
    ],
)
def test_every_command_that_reads_weights_names_the_tensor_with_nan(folder, capsys, monkeypatch, words):
    monkeypatch.chdir(folder)
    assert main(words) == 1
    said = capsys.readouterr()
    assert f"{NAME} in nan holds NaN" in " ".join(said.err.split()) and "perplexity" not in said.out
    assert not os.path.exists("out")


def test_an_overflow_while_computing_is_an_error_of_generate_and_evaluate(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    for words in (["generate", "large", "--prompt", "a"], ["evaluate", "large", "--data", "texts"]):
        assert main([*words, "--dtype", "float16"]) == 1
        said = capsys.readouterr()
        assert "--dtype float32" in " ".join(said.err.split()) and not said.out
        assert main([*words, *(["--max_new_tokens", "1"] if words[0] == "generate" else ["--limit", "1"])]) == 0
        capsys.readouterr()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_name_the_prompt_and_the_place(value):
    rows = [Generation([1]), Generation([1], tokens=[5, 6], is_ended=True), Generation([1], tokens=[5, 6])]
    logits = torch.zeros(3, 4)
    logits[:, 1] = -torch.inf
    check_logits(logits, rows, 8)
    logits[1, 2] = value
    check_logits(logits, rows, 8)
    logits[2, 2] = value
    with pytest.raises(MonographError, match="after 2 new tokens of prompt 11"):
        check_logits(logits, rows, 8)


def test_losses_that_are_not_finite_end_an_evaluation(folder):
    loaded = load_model(open_source(str(folder / "large")), CPU, length=32, dtype=torch.float16)
    tokens = loaded.encode("the answer to question 3 is 21.")
    with pytest.raises(MonographError, match="the loss of the first 1 documents is"):
        measure(loaded.model, [(torch.tensor(tokens).numpy(), 1)], device=CPU, seq_len=32, stride=32, batch_size=1)

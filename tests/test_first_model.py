"""The four commands of the README, word for word, from a Hugging Face model and a folder of texts."""

import re
import shlex
from pathlib import Path

import transformers

from monograph.cli import main
from tests.docs.commands import find_commands
from tests.kit.pretrained import TEXT, write_pretrained, write_texts

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
MODEL = "Qwen2.5-0.5B"


def test_the_four_commands_of_the_readme_tune_try_and_export_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pretrained(tmp_path / MODEL, "qwen2", scale=3.0)
    write_texts(tmp_path / "texts")
    (tmp_path / "held_out.txt").write_text(" ".join(TEXT))
    (section,) = re.findall(r"^## From a Hugging Face model.*?^## ", README, flags=re.M | re.S)
    commands = [shlex.split(command) for command in find_commands(section)]
    assert [words[0] for words in commands] == ["train", "evaluate", "generate", "hf"]
    said = []
    for words in commands:
        assert main([*words, "--training.steps", "6"] if words[0] == "train" else words) == 0
        said.append(capsys.readouterr().out)
    assert "perplexity" in said[1]
    prompt = commands[2][commands[2].index("--prompt") + 1]
    model = transformers.AutoModelForCausalLM.from_pretrained("tuned")
    tokenizer = transformers.AutoTokenizer.from_pretrained("tuned")
    ids = tokenizer(prompt, return_tensors="pt")
    theirs = model.generate(**ids, max_new_tokens=128, do_sample=False)[0]
    assert said[2].rstrip("\n") == tokenizer.decode(theirs, skip_special_tokens=True).rstrip("\n")

"""What the stages of a pipeline saved is a model like any other: evaluated, generated with, exported, started from."""

import json

import pytest
from safetensors.torch import load_file

from monograph.cli import main
from monograph.commands.arguments import ConfigOptions
from monograph.commands.request import read_request
from monograph.train.records import read_records
from tests.kit.pretrained import TEXT, write_pretrained, write_texts
from tests.kit.ranks import pool
from tests.parallel.pipeline.pipeline_work import train_once

FLAGS = """
    --training.seq_len 32 --training.local_batch_size 1 --training.global_batch_size 4
    --training.compute_dtype float32 --metrics.progress off --debug.device cpu --debug.log_level warning
    --debug.deterministic true --lr_scheduler.warmup_steps 0
"""


def train(source, folder, ranks, *more):
    """A run from a model's folder, on one rank or on the stages of a pipeline."""
    texts = folder.parent / "texts"
    flags = [*FLAGS.split(), *more, "--dataloader.dataset", str(texts), "--job.dump_folder", str(folder)]
    if ranks > 1:
        flags += ["--parallelism.pipeline_parallel_degree", str(ranks)]
    pool.run(ranks, train_once, read_request(["--model.from", str(source), *flags], ConfigOptions()).config)


def read_numbers(folder):
    records = read_records(folder / "metrics.jsonl")
    return [(each["step"], each.get("loss"), each.get("grad_norm"), each.get("validation_loss")) for each in records]


def say(capsys, *words):
    capsys.readouterr()
    assert main([*map(str, words)]) == 0
    return capsys.readouterr().out


def export(capsys, source, folder):
    """The tensors that a Hugging Face folder made from `source` holds."""
    say(capsys, "hf", "export", source, folder)
    return {name: value.tolist() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts")
    (tmp_path / "set.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXT[:6]))
    return tmp_path


def test_stages_start_from_a_hugging_face_folder_and_export_what_one_device_exports(folder, capsys):
    write_pretrained(folder / "tiny", "llama", scale=6.0)
    short = ("--training.steps", "1", "--compile.mode", "eager", "--validator.interval", "0")
    for name, ranks in (("one", 1), ("two", 2)):
        train(folder / "tiny", folder / name, ranks, *short)
    assert read_numbers(folder / "two") == read_numbers(folder / "one")
    wanted = export(capsys, folder / "one", folder / "one-hf")
    assert export(capsys, folder / "two", folder / "two-hf") == wanted


@pytest.mark.long
@pytest.mark.parametrize("family", ["llama", "deepseek_v3"])
def test_a_run_of_stages_is_evaluated_generates_exports_and_starts_another_as_one_of_a_device(folder, family, capsys):
    write_pretrained(folder / "tiny", family, scale=6.0, num_hidden_layers=3)
    more = ("--training.steps", "2", "--validator.interval", "2")
    for name, ranks in (("one", 1), ("two", 2)):
        train(folder / "tiny", folder / name, ranks, *more)
    assert read_numbers(folder / "two") == read_numbers(folder / "one")
    said = {}
    for name in ("one", "two"):
        evaluated = say(capsys, "evaluate", folder / name, "--data", "set.jsonl", "--json")
        written = say(capsys, "generate", folder / name, "--prompt", "the answer", "--max_new_tokens", 8, "--json")
        said[name] = evaluated, written, export(capsys, folder / name, folder / f"{name}-hf")
    assert said["one"] == said["two"]
    say(capsys, "hf", "import", folder / "two-hf", folder / "imported")
    for source in ("imported", "two", "two/checkpoints/step-00000002"):
        found = []
        for ranks in (1, 2):
            again = folder / f"{source.replace('/', '-')}-again-{ranks}"
            train(folder / source, again, ranks, *more)
            found.append(read_numbers(again))
        assert found[0] == found[1]
        assert found[0][0][1] is not None

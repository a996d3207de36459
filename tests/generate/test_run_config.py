"""A run's config.json and manifest are compared with its weights before anything is built from them."""

import hashlib
import json
import os
import shlex
import shutil
import time

import pytest

from monograph.cli import main
from tests.kit.pretrained import write_texts

TRAIN = shlex.split("""
    llama3_debugmodel --training.steps 1 --compile.mode eager --debug.device cpu --dataloader.dataset texts
    --training.seq_len 32 --training.local_batch_size 2 --validator.interval 0 --metrics.progress off
    --job.dump_folder run --model.n_layers 1
""")
MAX_SECONDS, MAX_BYTES = 2, 100 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a run of one step."""
    place = tmp_path_factory.mktemp("run_config")
    write_texts(place / "texts")
    before = os.getcwd()
    os.chdir(place)
    assert main(["train", *TRAIN]) == 0
    os.chdir(before)
    return place


def reseal(path, change):
    """Change a manifest and give it a hash that fits."""
    raw = json.loads(path.read_bytes())
    del raw["sha256"]
    change(raw)
    rest = json.dumps(raw).encode()[1:]
    path.write_bytes(b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest)


def read_memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


CHANGES = {
    "dim": lambda model: model.update(dim=10**9),
    "dim within its range": lambda model: model.update(dim=1 << 20),
    "vocabulary": lambda model: model.update(vocab_size=1 << 24),
    "layers": lambda model: model.update(n_layers=10**6),
    "layers within their range": lambda model: model.update(n_layers=1 << 16),
    "positions": lambda model: model["rope"].update(max_seq_len=2**62),
    "a list": lambda model: model.update(rope=[]),
    "text": lambda model: model.update(dim="64"),
    "feed-forward": lambda model: model["feed_forward"].update(hidden_dim=10**9),
}


@pytest.mark.parametrize("place", ["config.json", "manifest.json"])
@pytest.mark.parametrize("change", CHANGES)
def test_settings_that_are_not_the_weights_are_refused_at_once(folder, tmp_path, capsys, change, place):
    shutil.copytree(folder / "run", tmp_path / "run")
    step = tmp_path / "run/checkpoints/step-00000001"
    if place == "config.json":
        path = tmp_path / "run/config.json"
        data = json.loads(path.read_text())
        CHANGES[change](data["model"])
        path.write_text(json.dumps(data))
    else:
        reseal(step / "manifest.json", lambda raw: CHANGES[change](raw["values"]["model"]))
    words = ["generate", str(tmp_path / "run" if place == "config.json" else step), "--prompt", "a"]
    before, start = read_memory(), time.process_time()
    assert main(words) in (1, 2)
    assert time.process_time() - start < MAX_SECONDS and read_memory() - before < MAX_BYTES
    if place == "manifest.json":
        assert main(["hf", "export", str(step), str(tmp_path / "out"), "--tokenizer", "none"]) in (1, 2)
        assert time.process_time() - start < 2 * MAX_SECONDS
    assert str(tmp_path) in "".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("settings", []), ("settings", {"training": []}), ("settings", None), ("model", []), ("cursor", 3)],
        *[("step", "1"), ("step", None), ("tokens", -1), ("data", []), ("lr_plan", None), ("revisions", "x")],
    ],
)
def test_values_of_another_kind_are_refused_by_name(folder, tmp_path, capsys, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    reseal(tmp_path / "run/checkpoints/step-00000001/manifest.json", lambda raw: raw["values"].update({name: value}))
    train = ["train", *TRAIN, "--checkpoint.load", "1"]
    for words in (["generate", "run/checkpoints/step-00000001", "--prompt", "a"], train):
        assert main(words) in (1, 2)
        assert f"values.{name}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["step", "tokens", "cursor", "data"])
def test_a_checkpoint_that_does_not_say_where_it_stood_is_not_continued(folder, tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    reseal(tmp_path / "run/checkpoints/step-00000001/manifest.json", lambda raw: raw["values"].pop(name))
    assert main(["train", *TRAIN, "--checkpoint.load", "1"]) == 1
    assert f"its values have no {name}" in capsys.readouterr().err


def test_special_tokens_are_allowed_only_where_a_tokenizer_could_read_them(folder, capsys):
    assert main(["generate", str(folder / "run"), "--prompt", "a", "--allow_special"]) == 2
    assert "no text can write special tokens" in capsys.readouterr().err

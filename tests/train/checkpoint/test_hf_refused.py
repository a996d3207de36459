"""Hugging Face folders and checkpoints that cannot be moved are refused with the reason, and leave nothing behind."""

import errno
import json
import os
import shutil

import pytest
import torch

from monograph.cli import main
from monograph.errors import CheckpointError, ConfigError, DataError
from monograph.generate.settings import read_generation_settings
from monograph.train.checkpoint.hf_export import export_hf
from monograph.train.checkpoint.hf_import import import_hf
from monograph.train.checkpoint.hf_source import find_snapshot
from monograph.train.checkpoint.model_source import starts_with_special
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.tokenizer_files import make_json
from tests.train.checkpoint.disks import RefusingDisk, save_steps
from tests.train.checkpoint.theirs import read_all, replace, write_theirs

NAME = "model.layers.1.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tensors: tensors.pop(NAME), f"missing: {NAME}"),
        (lambda tensors: tensors.update({"model.layers.9.x": torch.ones(1)}), r"not known: model\.layers\.9\.x"),
        (lambda tensors: tensors.update({NAME: torch.ones(3, 4)}), rf"{NAME} has shape \[3, 4\] instead of \[40, 32\]"),
        (lambda tensors: tensors.clear(), "missing: .* and 16 more"),
    ],
)
def test_tensors_that_are_not_the_models_are_refused_before_anything_is_written(tmp_path, change, complaint):
    write_theirs(tmp_path / "theirs", "llama")
    tensors = read_all(tmp_path / "theirs")
    change(tensors)
    replace(tmp_path / "theirs", tensors)
    with pytest.raises(CheckpointError, match=complaint):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert os.listdir(tmp_path) == ["theirs"]


def test_experts_of_different_types_are_refused(tmp_path):
    write_theirs(tmp_path / "theirs", "qwen3 moe")
    tensors = read_all(tmp_path / "theirs")
    name = "model.layers.0.mlp.experts.1.gate_proj.weight"
    replace(tmp_path / "theirs", tensors | {name: tensors[name].half()})
    with pytest.raises(CheckpointError, match=r"(?s)layers\.0\.moe\.experts\.w1.*differ in type.*--dtype"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
    import_hf(tmp_path / "theirs", tmp_path / "ours", dtype=torch.float32)


def test_damaged_folders_are_refused_by_the_files_name(tmp_path):
    write_theirs(tmp_path / "good", "llama", shard_size="20KB")
    shards = sorted(path.name for path in (tmp_path / "good").glob("*.safetensors"))
    damages = {
        shards[0]: lambda path: path.write_bytes(path.read_bytes()[:-1]),
        shards[1]: lambda path: path.unlink(),
        "model.safetensors.index.json": lambda path: path.write_text("{}"),
        "config.json": lambda path: path.write_text("nonsense"),
    }
    for file, damage in damages.items():
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        damage(tmp_path / "bad" / file)
        with pytest.raises(CheckpointError, match=file):
            import_hf(tmp_path / "bad", tmp_path / "ours")
        shutil.rmtree(tmp_path / "bad")
    assert not (tmp_path / "ours").exists()


def test_an_index_that_names_the_wrong_file_or_leaves_the_folder_is_refused(tmp_path):
    write_theirs(tmp_path / "theirs", "llama", shard_size="20KB")
    path = tmp_path / "theirs" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    for file, complaint in [
        ("../evil.safetensors", "no weight_map"),
        (max(index["weight_map"].values()), "does not describe"),
    ]:
        path.write_text(json.dumps({"weight_map": dict.fromkeys(index["weight_map"], file)}))
        with pytest.raises(CheckpointError, match=complaint):
            import_hf(tmp_path / "theirs", tmp_path / "ours")


def test_pickled_weights_are_not_read(tmp_path):
    write_theirs(tmp_path / "theirs", "llama")
    os.rename(tmp_path / "theirs" / "model.safetensors", tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="only safetensors are read"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")


def test_a_family_that_is_not_known_is_refused_with_the_nearest(tmp_path):
    write_theirs(tmp_path / "theirs", "llama")
    path = tmp_path / "theirs" / "config.json"
    path.write_text(path.read_text().replace('"llama"', '"lama"'))
    with pytest.raises(ConfigError, match="did you mean 'llama'"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")


def test_nothing_is_overwritten_and_nothing_half_done_is_left(tmp_path):
    write_theirs(tmp_path / "theirs", "llama")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    for attempt in (
        lambda: import_hf(tmp_path / "theirs", tmp_path / "ours"),
        lambda: export_hf(tmp_path / "ours", tmp_path / "theirs"),
    ):
        with pytest.raises(CheckpointError, match="exists"):
            attempt()
    with pytest.raises(OSError, match=r"No space left.*import-00001\.safetensors"):
        import_hf(tmp_path / "theirs", tmp_path / "new", disk=RefusingDisk("write", errno.ENOSPC, at=4))
    for kind in ("write", "sync"):
        with pytest.raises(OSError, match=r"No space left.*model\.safetensors"):
            export_hf(tmp_path / "ours", tmp_path / "new", disk=RefusingDisk(kind, errno.ENOSPC, at=3))
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_a_damaged_checkpoint_is_not_exported(tmp_path):
    write_theirs(tmp_path / "theirs", "llama")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    path = tmp_path / "ours" / "import-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match=r"import-00001\.safetensors"):
        export_hf(tmp_path / "ours", tmp_path / "back")


def test_a_checkpoint_of_another_model_is_not_exported(tmp_path):
    write_theirs(tmp_path / "theirs", "llama")
    other = import_hf(tmp_path / "theirs", tmp_path / "ours").config
    other.dim = 64
    with pytest.raises(CheckpointError, match=r"(?s)does not fit the model.*has shape \[48, 32\] there and \[48, 64\]"):
        export_hf(tmp_path / "ours", tmp_path / "back", config=other)


def test_a_checkpoint_that_does_not_name_its_model_asks_for_it(tmp_path):
    save_steps(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"(?s)does not say which model.*--config"):
        export_hf(tmp_path / "step-00000001", tmp_path / "back")


@pytest.mark.parametrize("leads_to", ["nowhere", "empty", "full"])
def test_nothing_is_written_through_a_link(tmp_path, capsys, leads_to):
    write_theirs(tmp_path / "theirs", "llama")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    (tmp_path / "out").symlink_to(tmp_path / leads_to)
    for words in (["import", "theirs"], ["export", "ours"]):
        assert main(["hf", words[0], str(tmp_path / words[1]), str(tmp_path / "out")]) == 2
        said = "".join(capsys.readouterr().err.split())
        assert "isalink" in said and leads_to in said
    with pytest.raises(CheckpointError, match="is a link"):
        export_hf(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "nowhere").exists() and not os.listdir(tmp_path / "empty")


def test_a_panic_of_the_tokenizers_library_is_an_error_that_names_the_file(tmp_path):
    content = json.loads(make_json("qwen")) | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"(?s)tokenizer\.json cannot be used.*chunk size must be non-zero"):
        starts_with_special(tmp_path / "tokenizer.json")


@pytest.mark.parametrize(
    "content",
    ['{"eos_token_id": 1, "repetition_penalty": 1e400}', '{"eos_token_id": [[1]]}', '{"a":' * 200, "[]", None],
)
def test_hostile_generation_configs_are_refused_by_name(tmp_path, content):
    path = tmp_path / "generation_config.json"
    path.write_text(content) if content else os.mkfifo(path)
    with pytest.raises((CheckpointError, ConfigError), match="generation_config"):
        read_generation_settings(StandardTokenizerConfig(path=str(tmp_path)))


@pytest.mark.parametrize("ref", ["../../../other", "/etc", "", "\0"])
def test_a_reference_of_the_cache_does_not_leave_its_snapshots(tmp_path, ref):
    for name in ("a", "b"):
        (tmp_path / "model" / "snapshots" / name).mkdir(parents=True)
    (tmp_path / "model" / "refs").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "model" / "refs" / "main").write_text(ref)
    with pytest.raises(ConfigError, match="which of its snapshots"):
        find_snapshot(tmp_path / "model")

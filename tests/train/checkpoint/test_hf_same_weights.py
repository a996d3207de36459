"""A Hugging Face folder gives the weights that transformers loads from it, or an error that names both candidates."""

import json
import os
import shutil
import struct

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from monograph.errors import CheckpointError, ConfigError
from monograph.train.checkpoint.hf_weights import HfWeights
from tests.train.checkpoint.theirs import write_theirs

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A model in one file, the same in shards, and one that is tied."""
    place = tmp_path_factory.mktemp("originals")
    write_theirs(place / "single", "llama")
    write_theirs(place / "shards", "llama", shard_size="20KB")
    write_theirs(place / "tied", "llama tied")
    return place


def double(path):
    """Change the weights of a file."""
    save_file({name: 2 * value for name, value in load_file(path).items()}, path, metadata={"format": "pt"})


def add(path, **tensors):
    """Put further tensors into a file."""
    save_file(
        load_file(path) | {name.replace("__", "."): value for name, value in tensors.items()}, path, {"format": "pt"}
    )


def list_shards(folder):
    """The shards of a folder."""
    return sorted(folder.glob("model-*.safetensors"))


def copy_single_beside_shards(folder, originals):
    shutil.copy(originals / "single" / SINGLE, folder / SINGLE)
    double(folder / SINGLE)


def repeat_in_another_shard(folder, factor):
    first, *_, last = list_shards(folder)
    name, value = next(iter(load_file(first).items()))
    save_file(load_file(last) | {name: factor * value}, last, {"format": "pt"})


def name_variant(folder, *, also_pickle=False):
    os.rename(folder / SINGLE, folder / "model.fp16.safetensors")
    if also_pickle:
        torch.save(load_file(folder / "model.fp16.safetensors"), folder / "pytorch_model.bin")


def write_variant_index(folder):
    double_files = {path: path.with_name(path.name.replace("model-", "model.fp16-")) for path in list_shards(folder)}
    for path, variant in double_files.items():
        shutil.copy(path, variant)
        double(variant)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"] = {key: name.replace("model-", "model.fp16-") for key, name in index["weight_map"].items()}
    (folder / "model.safetensors.index.fp16.json").write_text(json.dumps(index))


def misname_in_index(folder):
    first, *_, last = list_shards(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][next(iter(load_file(last)))] = first.name
    (folder / INDEX).write_text(json.dumps(index))


def write_index_of_single(folder):
    names = dict.fromkeys(load_file(folder / SINGLE), SINGLE)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))


FOLDERS = {
    "tied, with an equal copy": (
        "tied",
        lambda f, _: add(f / SINGLE, lm_head__weight=load_file(f / SINGLE)[EMBEDDING]),
    ),
    "one file and an index of it": ("single", lambda f, _: write_index_of_single(f)),
    "shards, and those of a variant": ("shards", lambda f, _: write_variant_index(f)),
    "pickles beside safetensors": ("single", lambda f, _: torch.save({}, f / "pytorch_model.bin")),
    "a tensor twice, alike": ("shards", lambda f, _: repeat_in_another_shard(f, 1)),
}
REFUSED = {
    "tied, with another copy": (
        "tied",
        lambda f, _: add(f / SINGLE, lm_head__weight=2 * load_file(f / SINGLE)[EMBEDDING]),
        (HEAD, EMBEDDING, "tie_word_embeddings"),
    ),
    "tied, with a copy of another type": (
        "tied",
        lambda f, _: add(f / SINGLE, lm_head__weight=load_file(f / SINGLE)[EMBEDDING].half()),
        (HEAD, EMBEDDING),
    ),
    "one file beside shards": ("shards", copy_single_beside_shards, (f"{SINGLE} and {INDEX}",)),
    "a tensor twice": (
        "shards",
        lambda f, _: repeat_in_another_shard(f, 2),
        ("twice: model-00001-of", " and model-0000"),
    ),
    "a variant and pickles": (
        "single",
        lambda f, _: name_variant(f, also_pickle=True),
        ("model.fp16.safetensors and pytorch_model.bin",),
    ),
    "two variants": (
        "single",
        lambda f, _: (name_variant(f), shutil.copy(f / "model.fp16.safetensors", f / "model.bf16.safetensors")),
        ("model.bf16.safetensors and model.fp16.safetensors",),
    ),
    "shards without an index, one of them gone": (
        "shards",
        lambda f, _: (os.unlink(f / INDEX), os.unlink(list_shards(f)[1])),
        ("shards of its weights", INDEX),
    ),
    "an index with a tensor where it is not": (
        "shards",
        lambda f, _: misname_in_index(f),
        (INDEX, "not in model-00001-of"),
    ),
    "an empty index": ("shards", lambda f, _: (f / INDEX).write_text('{"weight_map": {}}'), (INDEX, "weight_map")),
    "an adapter": ("single", lambda f, _: (f / "adapter_config.json").write_text("{}"), ("adapter_config.json",)),
    "a dangling single file beside shards": (
        "shards",
        lambda f, _: (f / SINGLE).symlink_to("/nowhere"),
        (f"{SINGLE} and {INDEX}",),
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_weights_are_those_that_transformers_loads(originals, tmp_path, case):
    original, change = FOLDERS[case]
    shutil.copytree(originals / original, tmp_path / "folder")
    change(tmp_path / "folder", originals)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").state_dict()
    weights = HfWeights(tmp_path / "folder")
    ours = {entry.theirs[0]: weights.read_piece(key, 0) for key, entry in weights._entries.items()}
    assert ours.keys() <= theirs.keys() and len(ours) >= 20
    assert all(value.equal(theirs[name]) for name, value in ours.items())
    assert HEAD in ours or theirs[HEAD].equal(ours[EMBEDDING])


@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_weights_are_refused_with_both_candidates(originals, tmp_path, case):
    original, change, words = REFUSED[case]
    shutil.copytree(originals / original, tmp_path / "folder")
    change(tmp_path / "folder", originals)
    with pytest.raises(CheckpointError) as caught:
        HfWeights(tmp_path / "folder")
    for word in words:
        assert word in str(caught.value)


def test_shards_without_an_index_are_read_if_all_are_there(originals, tmp_path):
    shutil.copytree(originals / "shards", tmp_path / "folder")
    os.unlink(tmp_path / "folder" / INDEX)
    assert len(HfWeights(tmp_path / "folder").folder) == len(HfWeights(originals / "single").folder)


def test_another_file_that_config_json_names_is_refused(originals, tmp_path):
    shutil.copytree(originals / "single", tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config | {"transformers_weights": "x.safetensors"}))
    with pytest.raises(ConfigError, match="transformers_weights"):
        HfWeights(tmp_path / "folder")


def build_file(header, *, body=b"\0" * 64, size=None):
    """The bytes of a safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + body


def describe(dtype="F32", shape=(4, 4), offsets=(0, 64)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


FILES = {
    "overlapping": build_file({"a": describe(), "b": describe(offsets=(0, 64))}),
    "too few bytes for its type": build_file({"a": describe("F64")}),
    "trailing bytes": build_file({"a": describe()}, body=b"\0" * 65),
    "deep": build_file(b'{"a":' + b"[" * 100_000),
    "giant header": build_file({"a": describe()}, size=1 << 40),
    "negative sizes": build_file({"a": describe(shape=(-4, -4))}),
    "sizes that overflow": build_file({"a": describe(shape=(1 << 62, 16))}),
    "unknown type": build_file({"a": describe("F128")}),
    "empty": b"",
}


@pytest.mark.parametrize("case", FILES)
def test_damaged_safetensors_are_refused_by_name(originals, tmp_path, case):
    shutil.copytree(originals / "single", tmp_path / "folder")
    (tmp_path / "folder" / SINGLE).write_bytes(FILES[case])
    with pytest.raises(CheckpointError, match=rf"{SINGLE} cannot be read"):
        HfWeights(tmp_path / "folder")


@pytest.mark.parametrize("name", [SINGLE, INDEX, "config.json"])
@pytest.mark.parametrize("kind", ["FIFO", "zeros", "folder", "deep"])
def test_special_files_are_refused_at_once(originals, tmp_path, name, kind):
    shutil.copytree(originals / "shards" if name == INDEX else originals / "single", tmp_path / "folder")
    path = tmp_path / "folder" / name
    path.unlink()
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "zeros":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text('{"a":' * 100_000)
    with pytest.raises(CheckpointError, match=name):
        HfWeights(tmp_path / "folder")


def test_sizes_are_compared_with_the_tensors_before_a_model_is_built(originals, tmp_path, monkeypatch):
    shutil.copytree(originals / "single", tmp_path / "folder")
    path = tmp_path / "folder" / "config.json"
    config = json.loads(path.read_text())
    monkeypatch.setattr("monograph.train.checkpoint.hf_weights.describe_model", lambda *_: pytest.fail("it is built"))
    for n_layers, error in ((20_000, CheckpointError), (60_000, ConfigError)):
        path.write_text(json.dumps(config | {"num_hidden_layers": n_layers}))
        with pytest.raises(error, match=r"missing|tensors"):
            HfWeights(tmp_path / "folder")

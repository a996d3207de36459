"""Packed shards that were made or changed by somebody else: believed only as far as they are proven."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from monograph.cli import main
from monograph.errors import DataError
from monograph.train.data import open_shards as opening
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.open_shards import open_shards
from monograph.train.data.pack import pack
from monograph.train.data.shard_index import find_checksum, read_index
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import build_loader, make_texts, write_texts

TOKENIZER = StandardTokenizerConfig().build()
ESCAPES = "x\x1b[2J\n01:00:00 I all is well"


@pytest.fixture
def packed(tmp_path):
    texts = write_texts(tmp_path / "texts.jsonl", make_texts(60))
    pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "packed", shard_tokens=700)
    return tmp_path / "packed"


def reseal(folder, **changes):
    """Give an index other values and the hashes of the files as they are now: nothing but the tokens contradicts it."""
    content = json.loads((folder / "index.json").read_text()) | changes
    for entry in (*content["token_files"], content["offsets"], content["keys"]):
        if "\0" not in entry["name"] and (folder / entry["name"]).is_file():
            entry["sha256"] = hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest()
    (folder / "index.json").write_text(json.dumps(content | {"checksum": find_checksum(content)}))


def write_tokens(folder, change, **changes):
    """Change the tokens of the second file, and reseal the index."""
    tokens = np.fromfile(folder / "tokens-00001.bin", "<u2")
    change(tokens)
    tokens.tofile(folder / "tokens-00001.bin")
    reseal(folder, **changes)


def refuse(folder, match, **options):
    with pytest.raises(DataError, match=match) as error:
        open_shards(folder, TOKENIZER, **options)
    return error.value


def test_ids_above_the_largest_that_the_index_admits_are_refused(packed):
    write_tokens(packed, lambda tokens: tokens.__setitem__(7, 60_000))
    error = refuse(packed, r"tokens-00001\.bin' is damaged")
    assert "60000" in error.why and "257" in error.why


def test_a_largest_id_that_no_token_has_is_refused(packed):
    reseal(packed, max_token_id=300)
    assert "max_token_id is 300; the largest token is 257" in refuse(packed, "index.json").why


def test_a_content_hash_of_other_tokens_is_refused(packed):
    write_tokens(packed, lambda tokens: tokens.__setitem__(slice(3, 9), 65))
    assert "content_hash" in refuse(packed, "index.json").why


def test_files_that_end_in_half_a_token_are_refused(packed):
    files = json.loads((packed / "index.json").read_text())["token_files"]
    for entry, change in zip(files, (lambda data: data + b"\0", lambda data: data[:-1]), strict=False):
        path = packed / entry["name"]
        path.write_bytes(change(path.read_bytes()))
        entry["bytes"] = path.stat().st_size
    reseal(packed, token_files=files)
    assert "no whole tokens of 2" in refuse(packed, r"tokens-00000\.bin' is damaged", verify="sizes").why


def test_other_borders_of_documents_are_another_content(packed):
    offsets = np.fromfile(packed / "offsets.bin", "<i8")
    offsets[1] += 1
    offsets.tofile(packed / "offsets.bin")
    reseal(packed)
    assert "content_hash" in refuse(packed, "index.json").why


def test_the_content_is_proven_in_blocks_of_any_size(packed, monkeypatch):
    for size in (1, 7, 100, 699, 701):
        monkeypatch.setattr(opening, "BLOCK_TOKENS", size)
        open_shards(packed, TOKENIZER)


@pytest.mark.parametrize("verify", ["hashes", "sizes"])
def test_ids_that_come_after_the_check_reach_no_model(packed, verify):
    """Without hashes no token is read at the start; and files can be overwritten while a run uses them."""
    loader = build_loader(packed, verify_shards=verify, seq_len=32)
    for name in ("tokens-00000.bin", "tokens-00001.bin", "tokens-00002.bin"):
        with (packed / name).open("r+b") as file:
            file.write(np.full(300, 60_000, "<u2").tobytes())
    with pytest.raises(DataError, match="token id 60000") as error:
        [loader.sample(0, number) for number in range(loader.samples_per_epoch)]
    assert "tokens-0000" in error.value.what


def test_ids_beyond_the_vocabulary_of_the_model_are_refused(packed):
    write_tokens(packed, lambda tokens: tokens.__setitem__(7, 60_000), max_token_id=60_000)
    with pytest.raises(DataError, match=r"token id 60000 but model\.vocab_size is 259"):
        build_loader(packed, verify_shards="sizes")


@pytest.mark.parametrize("name", ["tokens-00001.bin", "offsets.bin"])
def test_a_shard_that_is_cut_during_a_run_is_named(packed, name):
    """A mapped page that is gone ends the process with SIGBUS: so this runs in one of its own."""
    lines = (
        "import os, sys",
        "from tests.kit.data import build_loader",
        "loader = build_loader(sys.argv[1], seq_len=32)",
        "os.truncate(os.path.join(sys.argv[1], sys.argv[2]), 0)",
        "[loader.sample(1, number) for number in range(loader.samples_per_epoch)]",
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines), packed, name], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1, done
    assert f"{name}' is damaged" in done.stderr and "it was cut while it was read" in done.stderr


def test_descriptions_cannot_write_to_the_terminal_or_the_log(packed):
    reseal(packed, description=ESCAPES, tokenizer_description=ESCAPES)
    corpus = open_shards(packed, TOKENIZER)
    assert "\n" not in corpus.description and r"x\x1b[2J\n01:00:00" in corpus.description
    with pytest.raises(DataError, match="another tokenizer") as error:
        open_shards(packed, StandardTokenizerConfig(add_bos=True).build())
    assert "\n" not in error.value.what and "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["tokens-1.bin", "../x.bin", "index.json", "offsets.bin", "a\0b", "tokens-00000.bin\n", "\ud800", ".", ""]
)
def test_names_that_no_packed_file_has_are_refused(packed, name):
    content = json.loads((packed / "index.json").read_text())
    content["token_files"][0]["name"] = name
    reseal(packed, token_files=content["token_files"])
    assert "\n" not in refuse(packed, r"index\.json' is damaged").why


def test_a_file_listed_twice_is_refused(packed):
    content = json.loads((packed / "index.json").read_text())
    reseal(packed, token_files=[*content["token_files"], content["token_files"][0]])
    assert "listed twice" in refuse(packed, r"index\.json").why


@pytest.mark.parametrize("name", ["index.json", "tokens-00000.bin", "offsets.bin", "keys.bin"])
def test_pipes_and_endless_files_are_refused_at_once(packed, name):
    (packed / name).unlink()
    os.mkfifo(packed / name)
    began = time.monotonic()
    assert "not a regular file" in refuse(packed, "damaged").why
    (packed / name).unlink()
    (packed / name).write_bytes(b"")
    os.truncate(packed / name, 100 << 30)
    refuse(packed, name)
    assert time.monotonic() - began < 2


def kill_while_packing(folder):
    """Kill `data pack` while it writes."""
    lines = (
        "import os, signal",
        "from monograph.cli import main",
        "from monograph.train.data import pack",
        "pack.tokenize_into = lambda *_: os.kill(os.getpid(), signal.SIGKILL)",
        "main(['data', 'pack', 'texts.jsonl', 'packed', '--overwrite', 'true'])",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=folder, timeout=120)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_packing_left_is_removed_by_the_next_one(tmp_path, packed, monkeypatch):
    kill_while_packing(tmp_path)
    assert len(list(tmp_path.glob(".packed.writing-*"))) == 1
    (tmp_path / ".packed.writing-00000000").mkdir()
    (tmp_path / ".packed.writing-00000000" / "mine.txt").write_text("dear")
    (tmp_path / ".packed.writing-00000001").symlink_to(packed)
    (tmp_path / ".packed.writing-1").mkdir()
    (tmp_path / ".old-packed-0123abcd").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["data", "pack", "texts.jsonl", "packed", "--overwrite", "true"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".packed.writing-00000000", ".packed.writing-00000001", ".packed.writing-1", "packed", "texts.jsonl")
    ]
    assert read_index(packed).documents == 60


def test_the_only_copy_of_replaced_shards_is_kept(tmp_path, packed, monkeypatch):
    """A packing that was killed between its two renames leaves the old shards under another name."""
    packed.rename(tmp_path / ".old-packed-0123abcd")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "pack", "missing.jsonl", "packed"]) == 2
    assert read_index(tmp_path / ".old-packed-0123abcd").documents == 60

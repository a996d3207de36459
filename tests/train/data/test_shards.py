import hashlib
import json
import logging
import mmap

import numpy as np
import pytest

from monograph.errors import ConfigError, DataError
from monograph.train.data import encode
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.dataset_name import find_source
from monograph.train.data.open_shards import open_shards
from monograph.train.data.pack import pack
from monograph.train.data.shard_index import find_checksum
from monograph.train.data.shards import ShardWriter
from monograph.train.data.token_file import TokenFile
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import as_rows, build_loader, make_texts, write_texts

TOKENIZER = StandardTokenizerConfig().build()


@pytest.fixture
def texts(tmp_path):
    return write_texts(tmp_path / "texts.jsonl", make_texts(60))


@pytest.fixture
def packed(tmp_path, texts):
    pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "packed", shard_tokens=700)
    return tmp_path / "packed"


def refuse(folder, match, *, verify="hashes"):
    with pytest.raises(DataError, match=match) as error:
        open_shards(folder, TOKENIZER, verify=verify)
    assert error.value.why and error.value.do
    return error.value


def test_shards_hold_what_was_read(texts, packed):
    in_memory = find_source(str(texts), DataLoaderConfig()).build().load_corpus(TOKENIZER)
    on_disk = find_source(str(packed), DataLoaderConfig()).build().load_corpus(TOKENIZER)
    assert len(on_disk.pieces) > 1 and on_disk.pieces[0].dtype == np.uint16
    assert np.array_equal(np.concatenate(in_memory.pieces), np.concatenate([piece[:] for piece in on_disk.pieces]))
    for name in ("offsets", "keys"):
        assert np.array_equal(getattr(in_memory, name), getattr(on_disk, name))
    for name in ("content_hash", "max_token_id", "token_count", "document_count"):
        assert getattr(in_memory, name) == getattr(on_disk, name)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_training_on_shards_is_training_on_the_texts(texts, packed, split):
    loaders = [build_loader(data, split=split, held_out_fraction=0.3) for data in (texts, packed)]
    one, other = ([as_rows(loader.sample(1, n)) for n in range(loader.samples_per_epoch)] for loader in loaders)
    assert one == other and len(one) > 10
    assert loaders[0].samples.content_hash == loaders[1].samples.content_hash


def test_shards_are_read_or_mapped_and_not_read_into_memory(packed):
    corpus = open_shards(packed, TOKENIZER)
    assert all(isinstance(piece, TokenFile) for piece in corpus.pieces)
    for table in (corpus.offsets, corpus.keys):
        while isinstance(table, np.ndarray):
            table = table.base
        assert isinstance(table, memoryview | mmap.mmap), table


def test_a_document_larger_than_a_shard_is_kept_whole(tmp_path):
    texts = write_texts(tmp_path / "t.jsonl", ["a" * 50, "b" * 900, "c" * 50])
    summary = pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "out", shard_tokens=100)
    corpus = open_shards(tmp_path / "out", TOKENIZER)
    assert summary.files == 3 and TOKENIZER.decode(corpus.read(1, 0, 901)) == "b" * 900


def test_large_vocabularies_take_four_bytes(tmp_path):
    class Large:
        dtype, fingerprint, description = np.dtype(np.uint32), "x", "large"

    with ShardWriter(tmp_path / "out", Large()) as writer:
        writer.add(np.array([70_000, 3], np.uint32), 5)
        writer.finish("a test")
    corpus = open_shards(tmp_path / "out", Large())
    assert corpus.read(0, 0, 2).tolist() == [70_000, 3] and corpus.max_token_id == 70_000


def test_the_summary_counts_what_was_written(tmp_path, texts, packed):
    summary = pack(
        DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "again", shard_tokens=700
    )
    corpus = open_shards(packed, TOKENIZER)
    assert (summary.documents, summary.tokens) == (60, corpus.token_count)
    assert summary.bytes == 2 * summary.tokens and summary.files == len(corpus.pieces)
    assert summary.content_hash == corpus.content_hash
    assert str(tmp_path / "again") in str(summary)


def test_packing_shows_its_progress(tmp_path, texts, caplog, monkeypatch):
    monkeypatch.setattr(encode.Progress.__init__, "__kwdefaults__", {"every_seconds": 0.0})
    with caplog.at_level(logging.INFO, "monograph"):
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "out")
    assert "60 documents" in caplog.text and "tokens/s" in caplog.text


def test_an_interrupted_packing_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), ShardWriter(tmp_path / "out", TOKENIZER) as writer:
        writer.add(TOKENIZER.encode_documents(["text"])[0], 1)
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_broken_line_leaves_nothing(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "good"}\n{')
    with pytest.raises(DataError, match=r"t\.jsonl:2"):
        pack(DataLoaderConfig(dataset=str(tmp_path / "t.jsonl")), StandardTokenizerConfig(), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["t.jsonl"]


def test_an_existing_folder_is_replaced_only_on_request(tmp_path, texts, packed):
    config = DataLoaderConfig(dataset=str(texts))
    with pytest.raises(DataError, match="exists already"):
        pack(config, StandardTokenizerConfig(), packed)
    pack(config, StandardTokenizerConfig(), packed, overwrite=True)
    assert len(open_shards(packed, TOKENIZER).pieces) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed", "texts.jsonl"]


def test_other_peoples_files_are_never_overwritten(tmp_path, texts):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("dear")
    with pytest.raises(ConfigError, match="will not overwrite"):
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "dear"


@pytest.mark.parametrize("name", ["tokens-9.txt", "tokens-00007.bin", "tokens-raw"])
def test_files_that_the_index_does_not_list_are_never_overwritten(texts, packed, name):
    (packed / name).mkdir() if name == "tokens-raw" else (packed / name).write_text("dear")
    with pytest.raises(ConfigError, match="will not overwrite") as error:
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), packed, overwrite=True)
    assert name in error.value.why and (packed / name).exists()


def test_a_link_to_shards_is_not_overwritten(tmp_path, texts, packed):
    (tmp_path / "link").symlink_to(packed)
    before = sorted(packed.iterdir())
    with pytest.raises(ConfigError, match=r"will not overwrite .*\n.*link"):
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "link", overwrite=True)
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(DataError, match="exists already"):
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "nowhere")
    assert sorted(packed.iterdir()) == before and (tmp_path / "link").is_symlink()


def test_shards_cannot_be_packed_again(tmp_path, packed):
    with pytest.raises(DataError, match="packed already"):
        pack(DataLoaderConfig(dataset=str(packed)), StandardTokenizerConfig(), tmp_path / "out")


def test_an_empty_shard_size_is_refused(tmp_path, texts):
    with pytest.raises(DataError, match="shard_tokens"):
        pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "out", shard_tokens=0)


@pytest.mark.parametrize("name", ["tokens-00000.bin", "tokens-00001.bin", "offsets.bin", "keys.bin"])
def test_one_changed_byte_is_found(packed, name):
    data = bytearray((packed / name).read_bytes())
    data[len(data) // 2] ^= 1
    (packed / name).write_bytes(data)
    assert name in refuse(packed, "damaged").what


@pytest.mark.parametrize("verify", ["hashes", "sizes"])
@pytest.mark.parametrize("name", ["tokens-00000.bin", "offsets.bin", "keys.bin"])
def test_a_file_cut_off_or_gone_is_found_by_either_check(packed, name, verify):
    data = (packed / name).read_bytes()
    (packed / name).write_bytes(data[:-2])
    error = refuse(packed, "damaged", verify=verify)
    assert name in error.what and f"{len(data) - 2} bytes" in error.why
    (packed / name).unlink()
    assert name in refuse(packed, "damaged", verify=verify).what


def test_comparing_sizes_does_not_read_the_tokens(packed):
    data = bytearray((packed / "tokens-00000.bin").read_bytes())
    data[0] ^= 1
    (packed / "tokens-00000.bin").write_bytes(data)
    assert open_shards(packed, TOKENIZER, verify="sizes").document_count == 60


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(max_token_id=3),
        lambda content: content.update(documents=59),
        lambda content: content.update(version=2),
        lambda content: content.update(format="other"),
        lambda content: content.update(dtype="object"),
        lambda content: content["token_files"][0].update(name="../secret.bin"),
        lambda content: content.pop("keys"),
        lambda content: content.pop("checksum"),
    ],
)
def test_a_changed_index_is_found(packed, change):
    content = json.loads((packed / "index.json").read_text())
    change(content)
    (packed / "index.json").write_text(json.dumps(content))
    assert "index.json" in refuse(packed, "damaged", verify="sizes").what


def write_offsets(packed, change):
    """Other offsets under an index that is sealed again, as a program that writes this format wrongly would."""
    offsets = np.fromfile(packed / "offsets.bin", "<i8")
    change(offsets)
    offsets.tofile(packed / "offsets.bin")
    content = json.loads((packed / "index.json").read_text())
    content["offsets"]["sha256"] = hashlib.sha256(offsets.tobytes()).hexdigest()
    (packed / "index.json").write_text(json.dumps(content | {"checksum": find_checksum(content)}))


@pytest.mark.parametrize("verify", ["hashes", "sizes"])
def test_documents_that_do_not_fill_the_tokens_are_refused(packed, verify):
    write_offsets(packed, lambda offsets: offsets.__setitem__(5, offsets[4]))
    assert "one after the other" in refuse(packed, "damaged", verify=verify).why


def test_a_document_across_two_files_is_refused(packed):
    boundary = json.loads((packed / "index.json").read_text())["token_files"][0]["bytes"] // 2

    def move(offsets):
        offsets[offsets == boundary] += 1

    write_offsets(packed, move)
    assert "across two token files" in refuse(packed, "damaged").why


def test_a_lost_or_unreadable_index_is_damage_not_an_empty_folder(packed):
    (packed / "index.json").write_text("{")
    assert "index.json" in refuse(packed, "damaged").what
    (packed / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        build_loader(packed)


def test_another_tokenizer_is_refused(packed):
    with pytest.raises(DataError, match="packed with another tokenizer"):
        open_shards(packed, StandardTokenizerConfig(add_bos=True).build())


def test_files_that_do_not_belong_to_the_shards_are_named(packed, caplog):
    (packed / "more\n.txt").write_text("not packed")
    with caplog.at_level(logging.INFO, "monograph"):
        build_loader(packed)
    assert "leaving out 1 that index.json does not list (more\\n.txt)" in caplog.text

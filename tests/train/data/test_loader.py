import logging
import threading
from collections import Counter

import pytest
import torch

from monograph.errors import DataError
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.cursor import Cursor
from monograph.train.data.source_configs import DataSourceConfig
from monograph.train.data.text_source import TextSource
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import as_rows, build_corpus, build_loader, make_texts, take_first, take_updates, write_texts


@pytest.fixture(scope="module")
def loader(tmp_path_factory):
    """The samples of an epoch are no multiple of the batch sizes used here, so that updates cross borders."""
    texts = write_texts(tmp_path_factory.mktemp("data") / "texts.jsonl", make_texts(16))
    loader = build_loader(texts, held_out_fraction=0.0)
    assert loader.samples_per_epoch % 8 and loader.samples_per_epoch > 24
    return loader


@pytest.fixture(scope="module")
def three_epochs(loader):
    """What must be seen, in order: (epoch, sample, rows)."""
    return [
        (epoch, index, as_rows(loader.sample(epoch, index)))
        for epoch in range(3)
        for index in range(loader.samples_per_epoch)
    ]


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("local", [1, 2])
def test_every_sample_is_seen_once_per_epoch_in_the_same_order_by_any_number_of_parts(
    loader, three_epochs, parts, local
):
    updates = len(three_epochs) // 8
    seen = take_updates(loader, Cursor(), updates, local=local, total=8, parts=parts)
    assert [rows for _, rows in seen] == [rows for _, _, rows in three_epochs[: updates * 8]]
    first_epoch = Counter(rows for _, rows in seen[: loader.samples_per_epoch])
    assert first_epoch == Counter(rows for epoch, _, rows in three_epochs if epoch == 0)
    assert set(first_epoch.values()) == {1}


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("updates_before", [1, 3, 7, 8, 13])
def test_a_resumed_run_sees_what_the_unbroken_run_would_have_seen(loader, three_epochs, parts, updates_before):
    cursor = Cursor().advance(8 * updates_before, loader.samples_per_epoch)
    seen = take_updates(loader, Cursor.from_json(cursor.to_json()), 6, local=2, total=8, parts=parts)
    expected = three_epochs[8 * updates_before : 8 * updates_before + 48]
    assert [rows for _, rows in seen] == [rows for _, _, rows in expected]


@pytest.mark.parametrize("parts", [1, 4])
def test_a_batch_carries_the_cursor_of_its_update_across_epoch_borders(loader, three_epochs, parts):
    seen = take_updates(loader, Cursor(), 20, local=2, total=8, parts=parts)
    for number, (cursor, _) in enumerate(seen):
        epoch, sample, _ = three_epochs[number // 8 * 8]
        assert cursor == Cursor(epoch, sample)
    inside = [cursor for cursor, _ in seen if cursor.sample + 8 > loader.samples_per_epoch]
    assert inside, "no update crossed the border of an epoch"


def test_one_update_may_be_longer_than_an_epoch(loader, three_epochs):
    total = loader.samples_per_epoch + 6
    seen = take_updates(loader, Cursor(), 2, local=1, total=total, parts=1)
    assert [rows for _, rows in seen] == [rows for _, _, rows in three_epochs[: 2 * total]]
    assert seen[-1][0] == Cursor(1, 6)


def test_batches_are_int64_tensors_in_host_memory(loader):
    with loader.batches(Cursor(), local_batch_size=2, global_batch_size=4) as batches:
        batch = next(batches)
    for name in ("tokens", "labels", "positions", "documents"):
        tensor = batch.tensors[name]
        assert tensor.shape == (2, 16) and tensor.dtype == torch.int64 and tensor.device.type == "cpu"


@pytest.mark.parametrize(("local", "parts"), [(1, 1), (2, 1), (3, 2), (16, 4)])
def test_validation_reads_the_same_samples_once_whatever_the_seed_the_batch_and_the_parts(tmp_path, local, parts):
    texts = write_texts(tmp_path / "texts.jsonl", make_texts(60))
    (held,) = build_loader(texts, seed=parts, shuffle=local > 1, held_out_fraction=0.2).open_validation_sets().values()
    (other,) = build_loader(texts, held_out_fraction=0.2).open_validation_sets().values()
    whole = [as_rows(other.sample(0, number)) for number in range(other.samples_per_epoch)]
    assert take_first(held, 7, local=local, parts=parts) == whole[:7]
    assert take_first(held, 10_000, local=local, parts=parts) == whole


def test_epochs_and_seeds_have_their_own_order(tmp_path):
    texts = write_texts(tmp_path / "t.jsonl", make_texts(16))
    orders = set()
    for seed in (1, 2):
        loader = build_loader(texts, seed=seed)
        again = build_loader(texts, seed=seed)
        for epoch in (0, 1):
            order = tuple(as_rows(loader.sample(epoch, index)) for index in range(loader.samples_per_epoch))
            assert order == tuple(as_rows(again.sample(epoch, index)) for index in range(loader.samples_per_epoch))
            orders.add(order)
    assert len(orders) == 4


def test_without_shuffling_the_text_is_read_from_front_to_back(tmp_path):
    texts = make_texts(16)
    loader = build_loader(write_texts(tmp_path / "t.jsonl", texts), held_out_fraction=0.0, shuffle=False)
    read = [token for index in range(loader.samples_per_epoch) for token in loader.sample(5, index)["tokens"].tolist()]
    expected = [token for text in texts for token in [*text.encode(), 257]]
    assert read == expected[: len(read)] and len(expected) - len(read) < 16


def test_training_and_validation_share_no_document(tmp_path):
    texts = make_texts(100)
    path = write_texts(tmp_path / "t.jsonl", texts + texts[:30])  # some texts twice
    train = build_loader(path, held_out_fraction=0.3, seq_len=1)
    held = train.open_validation_sets()["validation"]
    found = []
    for loader in (train, held):
        reader = loader.samples.reader
        lengths = reader.corpus.find_lengths(reader.members)
        members = {
            loader.plan.tokenizer.decode(reader.corpus.read(document, 0, length))
            for document, length in zip(reader.members, lengths, strict=True)
        }
        found.append(members)
    assert found[0] | found[1] == set(texts) and not found[0] & found[1]
    assert 15 < len(found[1]) < 45
    assert train.samples_per_epoch + held.samples_per_epoch == train.samples.reader.corpus.token_count
    assert train.samples.content_hash != held.samples.content_hash


def test_the_other_split_is_the_one_that_is_built_from_scratch_and_loads_nothing(tmp_path):
    path = write_texts(tmp_path / "t.jsonl", make_texts(100))
    train = build_loader(path, held_out_fraction=0.3)
    scratch = build_loader(path, held_out_fraction=0.3, split="validation")
    path.unlink()
    shared = train.open_validation_sets()["validation"]
    assert shared.samples.reader.corpus is train.samples.reader.corpus
    assert shared.samples.content_hash == scratch.samples.content_hash
    assert as_rows(shared.sample(0, 3)) == as_rows(scratch.sample(0, 3))


def test_validation_can_have_files_of_its_own(tmp_path):
    texts = write_texts(tmp_path / "t.jsonl", make_texts(50))
    own = write_texts(tmp_path / "own.jsonl", ["z" * 100])
    train = build_loader(texts, validation_datasets=(str(own),))
    held = train.open_validation_sets()["validation"]
    assert train.samples_per_epoch == train.samples.reader.corpus.token_count // 16  # nothing is held out
    assert held.samples.reader.corpus.document_count == 1 and set(held.sample(0, 0)["tokens"].tolist()) <= {
        ord("z"),
        257,
    }


def test_the_content_hash_follows_the_content(tmp_path):
    def build(texts, **settings):
        return build_loader(write_texts(tmp_path / "t.jsonl", texts), **settings).samples.content_hash

    texts = make_texts(50)
    hashes = [
        build(texts),
        build([*texts[:-1], texts[-1] + "!"]),
        build(texts[::-1]),
        build(["".join(texts[:2]), *texts[2:]]),
        build(texts, held_out_fraction=0.5),
        build(texts, held_out_fraction=0.5, split="validation"),
    ]
    assert len(set(hashes)) == len(hashes)
    assert build(texts) == hashes[0]


def test_the_content_hash_is_in_the_log(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "monograph"):
        loader = build_loader(write_texts(tmp_path / "t.jsonl", make_texts(9)))
    assert loader.samples.content_hash[:16] in caplog.text and "samples per epoch" in caplog.text


def test_a_saved_position_is_refused_in_other_data(tmp_path):
    path = write_texts(tmp_path / "t.jsonl", make_texts(30))
    loader = build_loader(path)
    loader.check_fingerprint(loader.fingerprint())
    for other in (build_loader(path, seed=2), build_loader(path, seq_len=8), build_loader(path, shuffle=False)):
        with pytest.raises(DataError, match="not the data of the saved run"):
            other.check_fingerprint(loader.fingerprint())
    write_texts(path, make_texts(31))
    with pytest.raises(DataError) as error:
        build_loader(path).check_fingerprint(loader.fingerprint())
    assert "content_hash" in error.value.why


def test_a_saved_position_is_refused_with_another_tokenizer_though_the_data_is_the_same(tmp_path):
    saved = build_loader(write_texts(tmp_path / "t.jsonl", make_texts(30)))
    other = build_loader(tmp_path / "t.jsonl", tokenizer=StandardTokenizerConfig(add_bos=True).build())
    other.samples = saved.samples
    with pytest.raises(DataError, match="not the data of the saved run") as error:
        other.check_fingerprint(saved.fingerprint())
    assert error.value.why.startswith("tokenizer was ") and "content_hash" not in error.value.why
    earlier = {name: value for name, value in saved.fingerprint().items() if name != "tokenizer"}
    other.check_fingerprint(earlier)


def test_a_position_outside_the_data_is_refused_at_once(loader):
    with pytest.raises(DataError, match="outside"):
        loader.batches(Cursor(0, loader.samples_per_epoch), local_batch_size=1, global_batch_size=1)


@pytest.mark.parametrize(
    ("local", "total", "parts", "nearest"), [(2, 6, 2, 8), (3, 8, 1, 9), (1, 3, 4, 4), (1, 0, 1, 1)]
)
def test_a_batch_that_cannot_be_shared_is_refused_at_once(loader, local, total, parts, nearest):
    with pytest.raises(DataError, match=f"global_batch_size {total} ") as error:
        loader.batches(Cursor(), local_batch_size=local, global_batch_size=total, parts=parts)
    assert str(local * parts) in error.value.why and error.value.do.endswith(f" {nearest}")


def test_a_part_that_does_not_exist_is_a_mistake(loader):
    with pytest.raises(ValueError, match="part 2 of 2"):
        loader.batches(Cursor(), local_batch_size=1, global_batch_size=2, part=2, parts=2)


def test_ids_beyond_the_vocabulary_are_refused_before_anything_is_read():
    config = DataLoaderConfig(dataset="does not exist")
    with pytest.raises(DataError) as error:
        config.build(tokenizer=StandardTokenizerConfig().build(), seq_len=8, vocab_size=256, seed=1)
    assert "258" in error.value.what and "256" in error.value.what and "--model.vocab_size 259" in error.value.do


def test_ids_that_occur_beyond_the_vocabulary_are_refused():
    source, tokenizer = TextSource(DataSourceConfig()), StandardTokenizerConfig().build()
    source._corpus = build_corpus([300])
    with pytest.raises(DataError, match="token id 299") as error:
        DataLoaderConfig().build(tokenizer=tokenizer, seq_len=8, vocab_size=299, seed=1, source=source)
    assert "299" in error.value.what and "--model.vocab_size 300" in error.value.do


@pytest.mark.parametrize("content", ["", '{"text": ""}\n\n{"text": ""}\n'])
def test_an_empty_corpus_is_refused(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(content)
    with pytest.raises(DataError, match="the dataset is empty") as error:
        build_loader(tmp_path / "t.jsonl")
    assert "t.jsonl" in error.value.what


def test_a_corpus_shorter_than_one_sequence_is_refused_with_numbers(tmp_path):
    path = write_texts(tmp_path / "t.jsonl", ["a" * 14])
    assert build_loader(path, seq_len=15).samples_per_epoch == 1
    with pytest.raises(DataError, match=r"15 tokens for training\.seq_len 16") as error:
        build_loader(path, seq_len=16)
    assert "--training.seq_len 15" in error.value.do


def test_nothing_to_validate_on_is_refused(tmp_path):
    path = write_texts(tmp_path / "t.jsonl", make_texts(20))
    with pytest.raises(DataError, match="nothing is held out") as error:
        build_loader(path, held_out_fraction=0.0, split="validation")
    assert "--dataloader.validation_datasets" in error.value.do


def test_half_a_character_is_refused_with_its_place(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"text": "fine"}\n{"text": "half \\ud83d"}\n')
    with pytest.raises(DataError, match=r"t\.jsonl:2: the text is not valid Unicode"):
        build_loader(tmp_path / "t.jsonl")


def test_an_error_while_reading_in_the_background_reaches_the_trainer(loader, monkeypatch):
    def broken(self, document, start, stop):
        raise OSError("the disk is gone")

    monkeypatch.setattr(TokenCorpus, "read", broken)
    with loader.batches(Cursor(), local_batch_size=1, global_batch_size=1) as batches:
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                next(batches)


def test_closing_ends_the_background_thread(loader):
    batches = loader.batches(Cursor(), local_batch_size=1, global_batch_size=1)
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name == "data train"]
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "data train"]

import itertools
import json
import threading
import time

import numpy as np
import pytest

from monograph.errors import DataError
from monograph.train.data import stream
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import find_source
from monograph.train.data.document import Document, find_key
from monograph.train.data.open_shards import open_shards
from monograph.train.data.pack import pack
from monograph.train.data.split import is_held_out
from monograph.train.data.stream import RowStream, is_transient
from monograph.train.data.stream_samples import split_blocks
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import as_rows, build_loader, make_texts, naive_samples, take_first, take_updates, write_texts

TEXTS = make_texts(40)


class FakeHub:
    """Rows that break off where told to: `faults` maps the number of the opening to (rows before, error)."""

    def __init__(self, texts=TEXTS, faults=None):
        self.texts, self.faults, self.openings = texts, faults or {}, 0

    def __call__(self):
        self.openings += 1
        rows, error = self.faults.get(self.openings, (len(self.texts) + 1, None))
        return self._rows(rows, error)

    def _rows(self, stop, error):
        for number, text in enumerate(self.texts):
            if number == stop:
                raise error
            yield {"text": text, "id": number}
        if stop == len(self.texts):
            raise error


def open_rows(hub, retries=3):
    return RowStream(lambda: [hub], description="hf:fake [train]", text_field="text", retries=retries)


def read(hub, retries=3):
    pauses = []
    texts = [document.text for document in open_rows(hub, retries).read(pauses.append)]
    return texts, pauses


def stream_loader(hub=None, **settings):
    settings = {"held_out_fraction": 0.0, "stream_buffer": 8, **settings}
    return build_loader("hf:fake", rows=hub or FakeHub(), **settings)


def first_samples(loader, count, cursor=None):
    return [rows for _, rows in take_updates(loader, cursor or Cursor(), count, local=1, total=1, parts=1)]


def test_rows_arrive_in_order():
    assert read(FakeHub()) == (TEXTS, [])


def test_a_broken_connection_is_continued_where_it_broke():
    faults = {1: (7, ConnectionResetError("reset")), 2: (7, TimeoutError("slow")), 3: (40, OSError("late"))}
    texts, pauses = read(FakeHub(faults=faults))
    assert texts == TEXTS
    assert pauses == [1.0, 2.0, 1.0]  # growing until a row arrives, then from the start again


def test_a_connection_that_stays_broken_ends_in_a_clear_error():
    hub = FakeHub(faults={number: (5, ConnectionError("no route")) for number in range(1, 100)})
    with pytest.raises(DataError, match="broke off after row 5") as error:
        read(hub)
    assert "no route" in error.value.why and "monograph data pack" in error.value.do
    assert hub.openings == 4  # the first and three more


def test_pauses_grow_to_a_minute_and_no_further():
    faults = {number: (0, ConnectionError("no")) for number in range(1, 10)}
    assert read(FakeHub(faults=faults), retries=9)[1] == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_opening_is_tried_again_as_well():
    hub, calls = FakeHub(), itertools.count()

    def rows():
        if next(calls) < 2:
            raise ConnectionError("not yet")
        return hub()

    assert read(rows) == (TEXTS, [1.0, 2.0])


@pytest.mark.parametrize(
    "error", [KeyError("column"), ValueError("no such split"), FileNotFoundError("no such dataset")]
)
def test_a_mistake_is_not_tried_again(error):
    hub = FakeHub(faults={1: (0, error)})
    with pytest.raises(DataError, match="cannot read hf:fake") as caught:
        read(hub)
    assert type(error).__name__ in caught.value.why and hub.openings == 1


def test_other_rows_after_a_break_are_an_error_and_not_other_data():
    hubs = iter([FakeHub(faults={1: (9, OSError("reset"))}), FakeHub([*TEXTS[:3], "changed", *TEXTS[4:]])])
    with pytest.raises(DataError, match="changed while it was read"):
        read(lambda: next(hubs)())
    hubs = iter([FakeHub(faults={1: (9, OSError("reset"))}), FakeHub(TEXTS[:4])])
    with pytest.raises(DataError, match="changed while it was read"):
        read(lambda: next(hubs)())


def test_http_answers_decide_whether_to_try_again():
    class Answer(Exception):
        def __init__(self, status):
            self.response = type("Response", (), {"status_code": status})

    assert [is_transient(Answer(status)) for status in (404, 401, 429, 408, 500, 503)] == [
        False, False, True, True, True, True]  # fmt: skip


def test_errors_of_network_packages_pass():
    foreign = type("ServerDisconnectedError", (Exception,), {"__module__": "aiohttp.client_exceptions"})
    assert is_transient(foreign()) and not is_transient(Exception())


def test_a_missing_field_is_found_before_training():
    with pytest.raises(DataError, match="row 1: there is no field 'body'"):
        stream_loader(text_field="body")


def test_an_empty_stream_is_found_before_training():
    with pytest.raises(DataError, match="the dataset is empty"):
        stream_loader(FakeHub([]))


def test_a_stream_without_text_for_a_split_is_an_error_and_not_a_wait():
    loader = stream_loader(split="validation")
    with (
        loader.batches(Cursor(), local_batch_size=1, global_batch_size=1) as batches,
        pytest.raises(DataError) as error,
    ):
        next(batches)
    assert "validation" in error.value.why


def test_unshuffled_samples_are_those_of_the_obvious_packing():
    loader = stream_loader(shuffle=False)
    documents = [[*text.encode(), 257] for text in TEXTS * 3]
    expected = [as_rows(sample) for sample in naive_samples(documents, 16)][:-1]
    assert loader.samples_per_epoch is None
    assert first_samples(loader, len(expected)) == expected


def test_shuffled_samples_hold_the_same_documents_in_another_order_on_every_pass():
    loader = stream_loader(seq_len=1)
    length = sum(len(text.encode()) + 1 for text in TEXTS)
    tokens = [rows[0][0] for rows in first_samples(loader, 2 * length)]
    passes = [
        loader.plan.tokenizer.decode(token if token != 257 else 10 for token in part).splitlines()
        for part in (tokens[:length], tokens[length:])
    ]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(TEXTS)
    assert len({tuple(passes[0]), tuple(passes[1]), tuple(TEXTS)}) == 3


@pytest.mark.parametrize("start", [1, 9, 50, 200])
def test_a_resumed_stream_goes_on_where_it_was(start):
    unbroken = first_samples(stream_loader(), start + 10)
    cursor = Cursor().advance(start, None)
    assert first_samples(stream_loader(), 10, cursor) == unbroken[start:]


def test_a_resumed_stream_survives_broken_connections(monkeypatch):
    monkeypatch.setattr("monograph.train.data.stream.FIRST_PAUSE_SECONDS", 0.001)
    faults = {2: (30, ConnectionError("reset")), 3: (38, ConnectionError("reset"))}  # the first opening only looks
    expected = first_samples(stream_loader(), 40)
    assert first_samples(stream_loader(FakeHub(faults=faults)), 15, Cursor(0, 25)) == expected[25:]


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_parts_share_a_stream_without_gaps_or_repeats(parts):
    loader = stream_loader()
    seen = take_updates(loader, Cursor(0, 3), 10, local=2, total=8, parts=parts)
    assert [rows for _, rows in seen] == first_samples(stream_loader(), 83)[3:]
    assert [cursor.sample for cursor, _ in seen[::8]] == list(range(3, 83, 8))


def test_one_sample_can_be_looked_up():
    loader = stream_loader()
    assert as_rows(loader.sample(0, 17)) == first_samples(loader, 18)[17]


def test_training_and_validation_share_no_document():
    settings = {"held_out_fraction": 0.4, "seq_len": 1}
    train, held = stream_loader(**settings), stream_loader(split="validation", **settings)
    total = sum(len(text.encode()) + 1 for text in TEXTS)
    batches = held.first_batches(total, local_batch_size=1)
    tokens = [
        [rows[0][0] for rows in first_samples(train, 2 * total)],
        [int(each.tensors["tokens"]) for each in batches],
    ]
    texts = [train.plan.tokenizer.decode(token if token != 257 else 10 for token in each) for each in tokens]
    seen = [set(texts[0].splitlines()[:-1]), set(texts[1].splitlines())]
    assert seen[0] | seen[1] == set(TEXTS) and not seen[0] & seen[1] and seen[1]


def test_closing_ends_a_stream_that_waits_for_its_next_attempt():
    faults = {number: (3, ConnectionError("no route")) for number in range(2, 100)}
    batches = stream_loader(FakeHub(faults=faults)).batches(Cursor(), local_batch_size=1, global_batch_size=1)
    time.sleep(0.05)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < 1
    assert not [thread for thread in threading.enumerate() if thread.name == "data train"]


def test_seeds_decide_the_order_of_a_stream():
    assert first_samples(stream_loader(seed=1), 20) == first_samples(stream_loader(seed=1), 20)
    assert first_samples(stream_loader(seed=1), 20) != first_samples(stream_loader(seed=2), 20)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_blocks_lose_and_repeat_nothing(size, count):
    documents = [Document("", str(number)) for number in range(count)]
    blocks = list(split_blocks(documents, size))
    assert list(itertools.chain(*blocks)) == documents and all(len(block) == size for block in blocks[:-1])


class FileHub:
    """A dataset of several files, which counts the rows that are read of each."""

    def __init__(self, files, faults=None):
        self.files, self.faults, self.read = files, faults or {}, []

    def __call__(self):
        return [lambda number=number: self._rows(number) for number in range(len(self.files))]

    def _rows(self, number):
        for row, text in enumerate(self.files[number]):
            if self.faults.get((number, row), 0):
                self.faults[number, row] -= 1
                raise ConnectionError("reset")
            self.read.append((number, row))
            yield {"text": text}


FILES = [TEXTS[:9], TEXTS[9:10], TEXTS[10:31], TEXTS[31:]]


def file_loader(hub, monkeypatch, **settings):
    monkeypatch.setattr("monograph.train.data.sources.open_hub", lambda *_, **__: hub)
    monkeypatch.setattr("monograph.train.data.stream.FIRST_PAUSE_SECONDS", 0.001)
    return build_loader("hf:fake", **{"held_out_fraction": 0.0, "stream_buffer": 4, **settings})


def test_a_broken_connection_reads_one_file_again_and_not_those_before_it(monkeypatch):
    hub = FileHub(FILES, {(2, 5): 2, (3, 0): 1})
    stream = file_loader(hub, monkeypatch).source.stream
    hub.read.clear()
    assert [document.text for document in stream.read(lambda seconds: False)] == TEXTS
    again = [(2, row) for row in range(5)] * 2
    assert sorted(hub.read) == sorted([(n, row) for n, texts in enumerate(FILES) for row in range(len(texts))] + again)


def test_a_file_that_changed_while_it_was_read_is_an_error(monkeypatch):
    hub = FileHub([list(texts) for texts in FILES], {(2, 5): 1})
    documents = file_loader(hub, monkeypatch).source.stream.read(lambda seconds: hub.files[2].insert(0, "new"))
    with pytest.raises(DataError, match="changed while it was read") as error:
        list(documents)
    assert "file 3, row 5" in error.value.why


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("start", [1, 60, 150, 400])
def test_a_resumed_stream_begins_with_the_block_of_its_first_sample(start, shuffle, monkeypatch):
    """Over passes, blocks and files, from a bookmark that went through JSON; no file before it is opened."""
    settings = {"shuffle": shuffle, "held_out_fraction": 0.3}
    loader = file_loader(FileHub(FILES), monkeypatch, **settings)
    unbroken = first_samples(loader, start + 10)
    bookmark = json.loads(json.dumps(loader.find_bookmark(Cursor(0, start))))
    assert start == 1 or bookmark[0] > 16 * (start - 60)
    hub = FileHub(FILES)
    resumed = file_loader(hub, monkeypatch, **settings)
    hub.read.clear()
    resumed.use_bookmark(bookmark)
    assert first_samples(resumed, 10, Cursor(0, start)) == unbroken[start:]
    assert hub.read[0][0] == bookmark[3][0], "the first file that is opened is the one of the block"


def test_a_resumed_mixture_begins_each_stream_with_its_block(tmp_path, monkeypatch):
    texts = write_texts(tmp_path / "texts.jsonl", make_texts(30))

    def build(hub):
        mixture = (f"own=1:{texts}", "web=2:hf:fake")
        monkeypatch.setattr("monograph.train.data.sources.open_hub", lambda *_, **__: hub)
        return build_loader("builtin", held_out_fraction=0.0, stream_buffer=4, mixture=mixture)

    loader = build(FileHub(FILES))
    unbroken = first_samples(loader, 110)
    bookmark = json.loads(json.dumps(loader.find_bookmark(Cursor(0, 100))))
    hub = FileHub(FILES)
    resumed = build(hub)
    hub.read.clear()
    resumed.use_bookmark(bookmark)
    assert list(bookmark) == ["web"] and bookmark["web"][0] > 0
    assert first_samples(resumed, 10, Cursor(0, 100)) == unbroken[100:]
    assert hub.read[0] == (bookmark["web"][3][0], 0)


def test_a_stream_can_be_packed(tmp_path):
    config = DataLoaderConfig(dataset="hf:fake")
    hub = FakeHub(faults={1: (11, ValueError("no"))})
    source = find_source(config.dataset, config).build(rows=hub)
    with pytest.raises(DataError, match="cannot read hf:fake"):
        pack(
            config,
            StandardTokenizerConfig(),
            tmp_path / "out",
            source=source,
        )
    assert (
        pack(
            config,
            StandardTokenizerConfig(),
            tmp_path / "out",
            source=source,
        ).documents
        == 40
    )
    tokens = np.concatenate(
        [piece[:] for piece in open_shards(tmp_path / "out", StandardTokenizerConfig().build()).pieces]
    )
    assert tokens.tolist() == [token for text in TEXTS for token in [*text.encode(), 257]]


def test_a_stream_without_the_datasets_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(stream, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="needs the datasets package") as error:
        build_loader("hf:someone/something")
    assert "[hf]'" in error.value.do


@pytest.mark.parametrize(("local", "parts"), [(1, 1), (3, 2), (16, 2)])
def test_a_stream_is_validated_on_its_first_samples_and_each_is_read_once(local, parts):
    held = stream_loader(seed=local, stream_buffer=parts, held_out_fraction=0.4, split="validation")
    texts = [text for text in TEXTS if is_held_out(find_key(Document("", text)), 0.4)]
    whole = [as_rows(sample) for sample in naive_samples([[*text.encode(), 257] for text in texts], 16)]
    assert take_first(held, 5, local=local, parts=parts) == whole[:5]
    assert take_first(held, 10_000, local=local, parts=parts) == whole

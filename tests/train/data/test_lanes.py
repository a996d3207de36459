import json
from collections import Counter

import pytest

from monograph.errors import DataError
from monograph.train.data.cursor import Cursor
from monograph.train.data.lanes import LaneSamples, choose_lanes
from tests.kit.data import as_rows, build_loader, make_texts, take_updates, write_texts

TEXTS = make_texts(60)
FILES = [TEXTS[:13], TEXTS[13:20], TEXTS[20:21], TEXTS[21:30], TEXTS[30:44], TEXTS[44:60]]


class Hub:
    """A dataset of several files, which notes the files that are opened."""

    def __init__(self, files=FILES):
        self.files, self.opened = files, []

    def __call__(self):
        return [lambda number=number: self._rows(number) for number in range(len(self.files))]

    def _rows(self, number):
        self.opened.append(number)
        for text in self.files[number]:
            yield {"text": text}


def build(monkeypatch, hub, *, update=8, dataset="hf:fake", **settings):
    monkeypatch.setattr("monograph.train.data.sources.open_hub", lambda *_, **__: hub)
    settings = {"held_out_fraction": 0.0, "stream_buffer": 8, "samples_per_update": update, **settings}
    return build_loader(dataset, **settings)


def read(loader, updates=20, *, parts=1, update=8, cursor=None):
    return [rows for _, rows in take_updates(loader, cursor or Cursor(), updates, local=1, total=update, parts=parts)]


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_lanes_give_the_same_samples_to_any_number_of_parts(lanes, parts, monkeypatch):
    alone = read(build(monkeypatch, Hub(), stream_lanes=lanes))
    assert read(build(monkeypatch, Hub(), stream_lanes=lanes), parts=parts) == alone
    assert len(set(alone)) > 100


@pytest.mark.parametrize(("lanes", "parts", "most"), [(4, 4, 2), (4, 2, 4), (4, 8, 2), (2, 4, 3)])
def test_each_part_opens_the_files_of_its_lanes_alone(lanes, parts, most, monkeypatch):
    opened = []
    for part in range(parts):
        hub = Hub()
        loader = build(monkeypatch, hub, stream_lanes=lanes)
        hub.opened.clear()
        with loader.batches(Cursor(), local_batch_size=1, global_batch_size=8, part=part, parts=parts) as batches:
            for _ in range(40 * 8 // parts):
                next(batches)
        opened.append(set(hub.opened))
        assert len(opened[-1]) <= most
    assert set.union(*opened) == set(range(len(FILES)))


def test_the_samples_of_each_lane_are_those_of_its_files_in_order(monkeypatch):
    loader = build(monkeypatch, Hub(), stream_lanes=2, shuffle=False)
    rows = read(loader, 12)
    alone = build(monkeypatch, Hub(FILES[1::2]), stream_lanes=1, shuffle=False)
    second = [sample for number, sample in enumerate(rows) if number % 8 >= 4]
    assert second == read(alone, 6)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("start", [8, 120, 400])
def test_a_run_that_continues_opens_only_the_files_of_its_bookmarks(start, shuffle, monkeypatch):
    settings = {"stream_lanes": 4, "shuffle": shuffle, "held_out_fraction": 0.2, "stream_buffer": 4}
    loader = build(monkeypatch, Hub(), **settings)
    unbroken = read(loader, start // 8 + 3)
    bookmark = json.loads(json.dumps(loader.find_bookmark(Cursor(0, start))))
    resumed = build(monkeypatch, Hub(), **settings)
    resumed.use_bookmark(bookmark)
    assert len(bookmark) == 4
    assert start == 8 or all(lane[0] > 0 for lane in bookmark)
    assert read(resumed, 3, cursor=Cursor(0, start), parts=2) == unbroken[start:]


def test_a_stream_in_a_mixture_has_lanes_by_its_share(tmp_path, monkeypatch):
    texts = write_texts(tmp_path / "texts.jsonl", make_texts(30))
    mixture = (f"own=1:{texts}", "web=3:hf:fake")
    loader = build(monkeypatch, Hub(), dataset="builtin", mixture=mixture)
    lanes = loader.mixture.readers[1]
    assert isinstance(lanes, LaneSamples) and len(lanes.lanes) == 6
    rows = read(loader, 30)
    assert read(build(monkeypatch, Hub(), dataset="builtin", mixture=mixture), 30, parts=4) == rows
    bookmark = json.loads(json.dumps(loader.find_bookmark(Cursor(0, 160))))
    resumed = build(monkeypatch, Hub(), dataset="builtin", mixture=mixture)
    resumed.use_bookmark(bookmark)
    assert read(resumed, 10, cursor=Cursor(0, 160)) == rows[160:]


@pytest.mark.parametrize(("update", "lanes"), [(4, 4), (6, 6), (100, 5), (17.5, 5), (0.7 * 512, 6), (2001, 6)])
def test_lanes_take_equally_many_samples(update, lanes):
    samples = LaneSamples([None] * choose_lanes(0, 6, update), update)
    taken = Counter(samples.order.find_source(number) for number in range(100_000, 142_000))
    assert len(taken) == lanes
    assert max(taken.values()) < 1.02 * min(taken.values())


def test_the_number_of_lanes_divides_the_batch_and_is_not_more_than_the_files():
    chosen = [choose_lanes(0, files, update) for files, update in [(1, 64), (5, 64), (100, 64), (100, 7), (100, 10.5)]]
    assert chosen == [1, 4, 16, 7, 7]
    assert choose_lanes(64, 1000, 512) == 64
    with pytest.raises(DataError, match="stream_lanes is 3") as error:
        choose_lanes(3, 5, 64)
    assert "--dataloader.stream_lanes 2" in error.value.do
    with pytest.raises(DataError, match="5 files"):
        choose_lanes(8, 5, 64)


def test_another_order_of_a_stream_has_another_content_hash(monkeypatch):
    settings = [
        {"stream_lanes": 1},
        {"stream_lanes": 2},
        {"stream_lanes": 4},
        {"stream_lanes": 4, "update": 16},
        {"stream_lanes": 4, "hub": Hub(FILES[:5])},
    ]
    loaders = [build(monkeypatch, each.pop("hub", Hub()), **each) for each in settings]
    assert len({loader.samples.content_hash for loader in loaders}) == len(settings)
    assert build(monkeypatch, Hub(), stream_lanes=1, update=16).samples.content_hash == loaders[0].samples.content_hash


def test_validation_reads_a_stream_in_its_own_order(monkeypatch):
    held = build(monkeypatch, Hub(), split="validation", held_out_fraction=0.5)
    whole = build(monkeypatch, Hub([TEXTS]), split="validation", held_out_fraction=0.5)
    assert [as_rows(held.sample(0, number)) for number in (0, 3)] == [as_rows(whole.sample(0, n)) for n in (0, 3)]


def test_counting_files_waits_for_the_network(monkeypatch):
    hub, tries = Hub(), []

    def open_late():
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return hub()

    monkeypatch.setattr("monograph.train.data.stream.FIRST_PAUSE_SECONDS", 0.001)
    assert build(monkeypatch, open_late).samples.content_hash == build(monkeypatch, hub).samples.content_hash

"""Texts that are held out are trained on nowhere: not through a copy, another source, a stream or packed shards."""

import logging
import random
import string
import threading
from dataclasses import replace

import numpy as np
import pytest

from monograph.errors import DataError
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.document import Document, find_key
from monograph.train.data.pack import pack
from monograph.train.data.source_configs import (
    FileSourceConfig,
    MixturePartConfig,
    MixtureSourceConfig,
    ShardSourceConfig,
)
from monograph.train.data.split import HeldOutTexts
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import build_loader, make_texts, write_texts
from tests.train.data.test_sources import Latents, Numbered

CASES = 12
SEQ_LEN, PIECE = 16, 8
"""Two rows of windows of 16 tokens share a piece of 8 wherever they hold the same text."""
EMPTY = ("nothing is held out", "shorter than one sequence", "none of its rows", "nothing is left to train on")
"""What is said of sources that are too small for a split."""


def write_source(folder, kind, texts):
    """A source of these texts."""
    if kind == "stream":
        return Numbered.Config(texts=texts)
    if kind == "files":
        folder.mkdir()
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_text(text)
        return FileSourceConfig(path=str(folder))
    rows = write_texts(folder.with_suffix(".jsonl"), texts)
    if kind == "packed":
        pack(DataLoaderConfig(dataset=str(rows)), StandardTokenizerConfig(), folder)
        return ShardSourceConfig(folder=str(folder))
    return FileSourceConfig(path=str(rows))


def open_mixture(folder, sources, **settings):
    """The training data of several sources, given as (kind, texts)."""
    folder.mkdir()
    parts = tuple(
        MixturePartConfig(name=f"s{number}", weight=1.0, source=write_source(folder / f"s{number}", kind, texts))
        for number, (kind, texts) in enumerate(sources)
    )
    return build_loader("builtin", source=MixtureSourceConfig(parts=parts), seq_len=SEQ_LEN, **settings)


def read_pieces(reader, count):
    """All stretches of PIECE tokens inside the documents of the first samples, last labels included."""
    found = set()
    for sample in reader.read(Cursor(), iter([range(count)]), threading.Event()):
        for number in range(int(sample["documents"][-1]) + 1):
            (places,) = np.nonzero(sample["documents"] == number)
            last = sample["labels"][places[-1]]
            found |= cut_pieces("".join(chr(token) for token in (*sample["tokens"][places], last) if 0 <= token < 256))
    return found


def cut_pieces(text):
    return {text[start : start + PIECE] for start in range(len(text) - PIECE + 1)}


def read_both(loader, texts):
    """The pieces that are trained on through any source, and those of the validation sets of all sources."""
    most = sum(len(text) + 1 for text in texts) // SEQ_LEN + 1
    found = []
    for split in ("train", "validation"):
        pieces = set()
        plan = replace(loader.plan, split=split, purpose=split, shuffle=False)
        for source in loader.source.sources:
            try:
                reader = source.open(plan).reader
                pieces |= read_pieces(reader, reader.samples_per_epoch or most)
            except DataError as error:
                assert any(what in str(error) for what in EMPTY), error
        found.append(pieces)
    return found


def draw_sources(draw):
    """Sources that share texts, hold several copies of some, and are too small for a whole document now and then."""

    def write():
        size = draw.choice([draw.randint(10, 60), draw.randint(60, 400), draw.randint(400, 1500)])
        return "".join(draw.choices(string.ascii_letters, k=size))

    shared = [write() for _ in range(draw.choice([1, 3, 30]))]
    sources = []
    for _ in range(draw.randint(1, 4)):
        texts = [draw.choice(shared) if draw.random() < 0.6 else write() for _ in range(draw.choice([1, 2, 4, 30]))]
        sources.append((draw.choice(["rows", "files", "packed", "stream"]), texts))
    return sources


@pytest.mark.parametrize("start", range(4))
def test_no_piece_of_a_held_out_text_is_trained_on_in_any_mixture(tmp_path, start):
    refused = validated = 0
    for seed in range(CASES * start, CASES * (start + 1)):
        draw = random.Random(seed)
        sources = draw_sources(draw)
        try:
            loader = open_mixture(tmp_path / str(seed), sources, held_out_fraction=draw.choice([0.02, 0.1, 0.4]))
        except DataError as error:
            assert any(what in str(error) for what in EMPTY), error
            refused += 1
            continue
        trained, held_out = read_both(loader, [text for _, texts in sources for text in texts])
        assert trained and not trained & held_out, f"seed {seed}"
        validated += bool(held_out)
    assert validated >= CASES // 3 and refused <= CASES // 6


@pytest.mark.parametrize("copies", [2, 5])
def test_a_text_with_copies_is_not_cut(tmp_path, copies):
    texts = ["".join(random.Random(seed).choices(string.ascii_letters, k=1900)) for seed in (1, 2)]
    text, other = texts
    text += text[:100]
    while find_key(Document("", text)) > find_key(Document("", other)):  # so that all copies would be held out first
        text += "x"
    loader = open_mixture(tmp_path / "run", [("files", [*[text] * copies, other])], held_out_fraction=0.02)
    trained, held_out = read_both(loader, [*[text] * copies, other])
    assert loader.plan.held_out.cuts.keys() == {find_key(Document("", other))}
    assert held_out <= cut_pieces(other[-300:]) and held_out and not trained & held_out


def test_rows_shared_by_two_sources_are_on_one_side_and_every_source_validates(tmp_path):
    texts = make_texts(400)
    loader = open_mixture(tmp_path / "run", [("rows", texts), ("rows", texts[::16])], held_out_fraction=0.02)
    sets = loader.open_validation_sets()
    assert all(each.samples_per_epoch for each in sets.values())
    trained, held_out = read_both(loader, texts)
    assert not trained & held_out


def test_a_text_whose_end_is_held_out_is_left_out_of_a_stream(tmp_path):
    book, *texts = ["".join(random.Random(2).choices(string.ascii_letters, k=2000)), *make_texts(60)]
    loader = open_mixture(tmp_path / "run", [("files", [book]), ("stream", [*texts, book])], held_out_fraction=0.1)
    trained, held_out = read_both(loader, [book, *texts])
    assert held_out & cut_pieces(book[-300:]) and not trained & held_out


def test_a_source_decides_the_same_alone_as_beside_sources_without_its_texts(tmp_path):
    texts = make_texts(300)
    alone = build_loader(write_texts(tmp_path / "t.jsonl", texts[:200]), seq_len=SEQ_LEN)
    loader = open_mixture(tmp_path / "run", [("rows", texts[:200]), ("files", ["y" * 900]), ("rows", texts[200:])])
    hashes = [source.open(loader.plan).content_hash for source in loader.source.sources]
    assert hashes[0] == alone.samples.content_hash
    again = open_mixture(tmp_path / "again", [("rows", texts[:200]), ("files", ["y" * 900]), ("rows", texts[200:])])
    assert again.fingerprint() == loader.fingerprint(), "a run that continues has the same split"


def test_what_is_held_out_of_a_stream_is_in_the_hash_of_its_content(tmp_path):
    texts = make_texts(60)
    hashes = []
    for number, book in enumerate(["a" * 2000, "b" * 2000]):
        loader = open_mixture(tmp_path / str(number), [("files", [book]), ("stream", texts)])
        hashes.append(loader.source.sources[1].open(loader.plan).content_hash)
    alone = build_loader("builtin", source=Numbered.Config(texts=texts), seq_len=SEQ_LEN).samples.content_hash
    assert len({*hashes, alone}) == 3


def test_samples_that_are_no_texts_are_said_to_be_split_by_number(tmp_path, caplog):
    def part(name, source):
        return MixturePartConfig(name=name, weight=1.0, source=source)

    parts = part("latents", Latents.Config()), part("more", Latents.Config(size=50))
    with caplog.at_level(logging.INFO, "monograph"):
        build_loader("builtin", source=MixtureSourceConfig(parts=parts))
    assert "samples of latents, more are held out by their numbers" in caplog.text


def test_a_key_of_a_stream_is_looked_up_as_those_of_a_corpus():
    keys = np.random.default_rng(0).integers(0, 2**64, 200, np.uint64)
    plan = HeldOutTexts(0.3, added=np.sort(keys[::9]), kept=np.sort(np.setdiff1d(keys[::7], keys[::9])))
    held_out = plan.find(keys)
    assert [plan.has(int(key), "validation") for key in keys] == held_out.tolist()
    assert [plan.has(int(key), "train") for key in keys] == (~held_out).tolist()
    assert not any(replace(plan, cuts={7: 3}).has(7, split) for split in ("train", "validation"))

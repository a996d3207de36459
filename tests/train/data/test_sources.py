"""Data sources: the protocol that built-in ones and a user's own have in common."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from monograph.errors import DataError
from monograph.train.data.batch import stack_samples
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import find_source
from monograph.train.data.document import Document
from monograph.train.data.indexed_source import IndexedSource
from monograph.train.data.pack import pack
from monograph.train.data.sources import BuiltinSource, FileSource, HubSource, ShardSource
from monograph.train.data.stream import describe_copy
from monograph.train.data.stream_source import StreamSource
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.data import build_loader, make_texts, take_updates, write_texts


class Latents(IndexedSource):
    """Samples for a model that reads no tokens."""

    @dataclass(kw_only=True, slots=True)
    class Config(IndexedSource.Config):
        size: int = 40
        """How many."""

    def count(self, plan):
        return self.config.size

    def load(self, index, plan):
        return {"latents": np.full((2, 3), index, np.float32), "timesteps": np.array(index, np.int64)}


class Numbered(StreamSource):
    """Documents that are counted, front to back."""

    @dataclass(kw_only=True, slots=True)
    class Config(StreamSource.Config):
        texts: list[str] = field(default_factory=list)
        """Its documents."""

    def read(self, pause=None):
        return (Document(f"text {number}", text) for number, text in enumerate(self.config.texts))


def open_latents(*, seed=1, split="train", size=40, **settings):
    config = DataLoaderConfig(source=Latents.Config(size=size), **settings)
    return config.build(tokenizer=StandardTokenizerConfig().build(), seq_len=8, seed=seed, split=split)


def read_steps(loader, updates, *, parts, total=4, cursor=None):
    """The timesteps of some updates, all parts together."""
    found = []
    for part in range(parts):
        sizes = {"local_batch_size": 1, "global_batch_size": total}
        with loader.batches(cursor or Cursor(), part=part, parts=parts, **sizes) as batches:
            count = updates * total // parts
            found.append([int(batch.tensors["timesteps"][0]) for batch in itertools.islice(batches, count)])
    share = total // parts
    return [
        number for update in range(updates) for mine in found for number in mine[update * share : (update + 1) * share]
    ]


def test_a_batch_has_the_names_shapes_and_dtypes_of_its_samples():
    with open_latents().batches(Cursor(), local_batch_size=3, global_batch_size=3) as batches:
        tensors = next(batches).tensors
    assert {name: (tuple(value.shape), value.dtype) for name, value in tensors.items()} == {
        "latents": ((3, 2, 3), torch.float32),
        "timesteps": ((3,), torch.int64),
        "samples": ((3,), torch.int64),
    }


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_any_number_of_parts_sees_the_same_samples_from_any_cursor(parts):
    loader = open_latents(held_out_fraction=0.0)
    whole = read_steps(loader, 25, parts=1)
    assert sorted(whole[:40]) == list(range(40)) and whole[:40] != whole[40:80]
    cursor = Cursor().advance(5 * 4, loader.samples_per_epoch)
    assert read_steps(loader, 20, parts=parts, cursor=cursor) == whole[20:]


def test_training_and_validation_share_no_sample_and_miss_none():
    train = open_latents(held_out_fraction=0.3, shuffle=False)
    held = train.open_validation_sets()["validation"]
    seen = [{int(each.sample(0, n)["timesteps"]) for n in range(each.samples_per_epoch)} for each in (train, held)]
    assert not seen[0] & seen[1] and seen[0] | seen[1] == set(range(40)) and seen[1]


def test_samples_without_labels_fill_the_micro_batches_of_a_validation_or_are_refused():
    (held,) = open_latents(held_out_fraction=0.25).open_validation_sets().values()
    assert held.samples_per_epoch == 10
    assert len(held.first_batches(8, local_batch_size=2, part=1, parts=2)) == 2
    with pytest.raises(DataError, match="10 samples do not fill micro-batches of 4 over all") as error:
        held.first_batches(100, local_batch_size=2, parts=2)
    assert error.value.do == "--validator.samples 8"


def test_settings_of_a_source_are_in_the_fingerprint_of_the_data():
    assert open_latents().fingerprint() == open_latents().fingerprint()
    with pytest.raises(DataError, match="not the data of the saved run"):
        open_latents(size=41).check_fingerprint(open_latents().fingerprint())


def test_a_source_without_samples_is_refused():
    with pytest.raises(DataError, match="the train data is empty: Latents"):
        open_latents(size=0)
    with pytest.raises(DataError, match="held_out_fraction") as error:
        open_latents(split="validation", held_out_fraction=0.0)
    assert error.value.do == "raise --dataloader.held_out_fraction"


def test_samples_that_differ_in_form_are_refused_with_both_forms():
    one, other = {"x": np.zeros(3, np.float32)}, {"x": np.zeros(4, np.float32)}
    with pytest.raises(DataError, match="differ in names, shapes or dtypes") as error:
        stack_samples([one, other], Cursor())
    assert "x float32[3]" in error.value.why and "x float32[4]" in error.value.why


def test_a_stream_of_your_own_gives_what_the_hub_gives_for_the_same_rows():
    texts = make_texts(40)
    hub = build_loader("hf:fake", rows=lambda: iter([{"text": text} for text in texts]), stream_buffer=8)
    config = DataLoaderConfig(source=Numbered.Config(texts=texts, buffer=8))
    own = config.build(tokenizer=StandardTokenizerConfig().build(), seq_len=16, vocab_size=259, seed=1)
    sizes = {"local": 1, "total": 2, "parts": 2}
    assert own.samples_per_epoch is None
    assert take_updates(own, Cursor(0, 3), 20, **sizes) == take_updates(hub, Cursor(0, 3), 20, **sizes)


def test_short_names_mean_built_in_sources(tmp_path):
    texts = write_texts(tmp_path / "t.jsonl", make_texts(10))
    pack(DataLoaderConfig(dataset=str(texts)), StandardTokenizerConfig(), tmp_path / "packed")
    names = {
        "builtin": BuiltinSource,
        str(texts): FileSource,
        "hf:x/y": HubSource,
        str(tmp_path / "packed"): ShardSource,
    }
    assert {name: find_source(name, DataLoaderConfig()).owner.partition(":")[2] for name in names} == {
        name: kind.__name__ for name, kind in names.items()
    }


def test_a_source_chosen_by_class_gives_the_samples_of_its_short_name(tmp_path):
    texts = write_texts(tmp_path / "t.jsonl", make_texts(30))
    named = build_loader(texts)
    chosen = build_loader("builtin", source=find_source(str(texts), DataLoaderConfig()))
    assert chosen.fingerprint() == named.fingerprint()


def test_samples_cannot_be_packed_into_tokens(tmp_path):
    with pytest.raises(DataError, match="has no documents"):
        pack(DataLoaderConfig(source=Latents.Config()), StandardTokenizerConfig(), tmp_path / "out")


def test_linked_folders_belong_to_the_identity_of_a_local_copy(tmp_path):
    big = write_texts(tmp_path / "texts.jsonl", ["one"]).parent
    copy = tmp_path.parent / f"{tmp_path.name}-copy"
    copy.mkdir()
    (copy / "linked").symlink_to(big)
    before = describe_copy(copy)
    write_texts(tmp_path / "texts.jsonl", ["one", "two"])
    assert before and describe_copy(copy) != before
    (copy / "broken").symlink_to(copy / "missing")
    with pytest.raises(DataError, match="leads nowhere"):
        describe_copy(copy)

"""Small corpora and a slow, obvious version of packing to compare with."""

import itertools
import json
import random
import string
from pathlib import Path

import numpy as np

from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.corpus import CorpusBuilder, TokenCorpus
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import find_source
from monograph.train.data.loader import DataLoader
from monograph.train.data.sample import Sample
from monograph.train.data.tokenizer_config import StandardTokenizerConfig

NAMES = ("tokens", "labels", "positions", "documents")


def build_corpus(lengths: list[int], *, piece_tokens: int = 1 << 20) -> TokenCorpus:
    """Documents of these lengths; every token of the corpus is different."""
    builder = CorpusBuilder(np.dtype(np.uint32), piece_tokens=piece_tokens)
    numbers = itertools.count()
    for key, length in enumerate(lengths):
        builder.add(np.array(list(itertools.islice(numbers, length)), dtype=np.uint32), key)
    return builder.finish("a corpus for a test")


def write_texts(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def make_texts(count: int) -> list[str]:
    """Texts of different lengths in which no stretch of a few letters comes twice."""
    letters = random.Random(5)
    return ["".join(letters.choices(string.ascii_letters, k=20 + number * 37 % 110)) for number in range(count)]


def build_loader(dataset: object, *, seq_len: int = 16, seed: int = 1, split: str = "train", **settings) -> DataLoader:
    rows, update = settings.pop("rows", None), settings.pop("samples_per_update", 1)
    tokenizer = settings.pop("tokenizer", None) or StandardTokenizerConfig().build()
    config = DataLoaderConfig(dataset=str(dataset), **settings)
    config.check()
    context = {"source": find_source(config.dataset, config).build(rows=rows)} if rows is not None else {}
    fixed = {"tokenizer": tokenizer, "vocab_size": 259, "samples_per_update": update}
    return config.build(seq_len=seq_len, seed=seed, split=split, **fixed, **context)


def naive_samples(documents: list[list[int]], seq_len: int) -> list[Sample]:
    """Packing as one would explain it: write all tokens in a row, remember whose they are, cut."""
    row = [
        (token, number, place == len(document) - 1)
        for number, document in enumerate(documents)
        for place, token in enumerate(document)
    ]
    samples = []
    for start in range(0, len(row) - seq_len + 1, seq_len):
        fields: dict[str, list[int]] = {name: [] for name in NAMES}
        seen: list[int] = []
        for place in range(start, start + seq_len):
            token, owner, is_last = row[place]
            if owner not in seen:
                seen.append(owner)
                begin = place
            fields["tokens"].append(token)
            fields["labels"].append(-100 if is_last else row[place + 1][0])
            fields["positions"].append(place - begin)
            fields["documents"].append(seen.index(owner))
        samples.append({name: np.array(values) for name, values in fields.items()})
    return samples


def as_rows(sample: Sample) -> tuple[tuple[int, ...], ...]:
    """A sample as something that can be compared and put into a set."""
    return tuple(tuple(sample[name].tolist()) for name in NAMES)


def take_updates(loader: DataLoader, cursor: Cursor, updates: int, *, local: int, total: int, parts: int) -> list:
    """The samples of some updates as (cursor of the update, rows), put together from all parts in order."""
    per_part = total // parts // local
    taken = []
    for part in range(parts):
        with loader.batches(cursor, local_batch_size=local, global_batch_size=total, part=part, parts=parts) as batches:
            taken.append([next(batches) for _ in range(updates * per_part)])
    found = []
    for update, part, number in itertools.product(range(updates), range(parts), range(per_part)):
        batch = taken[part][update * per_part + number]
        for row in range(local):
            rows = tuple(tuple(batch.tensors[name][row].tolist()) for name in NAMES)
            found.append((batch.cursor, rows))
    return found


def take_first(loader, count, *, local, parts):
    """The samples that count among the first ones, in order; every part has as many micro-batches."""
    taken = [loader.first_batches(count, local_batch_size=local, part=part, parts=parts) for part in range(parts)]
    rows = [
        {name: value[row] for name, value in batch.tensors.items()}
        for together in zip(*taken, strict=True)
        for batch in together
        for row in range(local)
    ]
    assert [int(row["samples"]) for row in rows] == list(range(len(rows)))
    return [as_rows(row) for row in rows if (row["labels"] != -100).any()]

"""The data of a run is the same on every rank, or the run does not start."""

import hashlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from monograph.errors import ConfigError, DataError
from monograph.train.data.file_checks import FileCheck, find_damage
from monograph.train.open_data import check_together, describe_data
from tests.kit.data import build_loader, make_texts, write_texts
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import run_trainer
from tests.train.data.test_sources import open_latents


def train_on_own_node(config, nodes):
    """The whole trainer in a folder of this rank's own, and what it says instead."""
    before = os.getcwd()
    os.chdir(nodes[int(os.environ["RANK"])])
    try:
        run_trainer(config)
    except ConfigError as error:
        return str(error)
    finally:
        os.chdir(before)
    return ""


@pytest.fixture
def nodes(tmp_path):
    """Two nodes with a dataset of their own; that of the second has one letter more."""
    found = [tmp_path / name for name in ("one", "two")]
    for number, node in enumerate(found):
        node.mkdir()
        write_texts(node / "texts.jsonl", [*make_texts(60), "last" + "!" * number])
    return found


def test_ranks_that_read_other_data_do_not_start(tmp_path, nodes):
    changes = {"dataloader.dataset": "texts.jsonl", "training.steps": 1, "checkpoint.enabled": False}
    config = tiny("llama3", tmp_path / "run", changes)
    one, other = pool.run(2, train_on_own_node, config, nodes)
    assert one == other
    assert one.startswith("the data of rank 1 is not that of rank 0") and "content_hash" in one
    assert pool.run(2, train_on_own_node, config, [nodes[0]] * 2) == ["", ""]


def test_what_ranks_compare_follows_the_content_the_tokenizer_and_the_first_sample(tmp_path, nodes):
    described = [
        describe_data(build_loader(nodes[0] / "texts.jsonl")),
        describe_data(build_loader(nodes[1] / "texts.jsonl")),
        describe_data(build_loader(nodes[0] / "texts.jsonl", seq_len=8)),
        describe_data(open_latents()),
    ]
    assert len(set(described)) == 4
    assert describe_data(build_loader(nodes[0] / "texts.jsonl")) == described[0]
    latents = open_latents()
    load = latents.source.load
    latents.source.load = lambda index, plan: {name: value + 1 for name, value in load(index, plan).items()}
    assert describe_data(latents) != described[3], "other files of the same number and class"


class Meeting:
    """Ranks that are threads: what each of them gives, all of them get."""

    def __init__(self, size):
        self.values, self.barrier = [None] * size, threading.Barrier(size, timeout=10)

    def join(self, rank):
        def gather(value):
            self.values[rank] = value
            self.barrier.wait()
            found = list(self.values)
            self.barrier.wait()
            return found

        return SimpleNamespace(rank=rank, all_gather_object=gather)


def check_on_ranks(monkeypatch, by_rank):
    """Which files each rank reads, and what it says of them."""
    read, meeting, this = [[] for _ in by_rank], Meeting(len(by_rank)), threading.local()

    def find(files):
        read[this.rank] += [each.path.name for each in files]
        return find_damage(files)

    def run(rank):
        this.rank = rank
        try:
            check_together(meeting.join(rank), by_rank[rank])
        except DataError as error:
            return str(error)
        return ""

    monkeypatch.setattr("monograph.train.open_data.find_damage", find)
    with ThreadPoolExecutor(len(by_rank)) as pool:
        return read, list(pool.map(run, range(len(by_rank))))


def make_files(folder):
    folder.mkdir()
    found = []
    for number in range(5):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 100)
        found.append(FileCheck(folder / f"{number}.bin", hashlib.sha256(bytes([number]) * 100).hexdigest()))
    return found


def test_ranks_read_each_file_once_where_they_see_the_same_one_and_their_own_copy_where_they_do_not(
    tmp_path, monkeypatch
):
    shared, copy = make_files(tmp_path / "shared"), make_files(tmp_path / "copy")
    read, said = check_on_ranks(monkeypatch, [shared, copy, shared])
    assert said == ["", "", ""]
    assert sorted(read[0] + read[2]) == sorted(read[1]) == [f"{number}.bin" for number in range(5)]
    assert read[0] and read[2]
    shared[3].path.write_bytes(b"other")
    read, said = check_on_ranks(monkeypatch, [shared, shared])
    assert said[0] == said[1] and "3.bin' is damaged" in said[0], "all ranks know what one has found"
    assert sorted(read[0] + read[1]) == [f"{number}.bin" for number in range(5)]


def test_a_fifo_in_the_place_of_a_shard_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "tokens-\n.bin")
    problem = find_damage([FileCheck(tmp_path / "tokens-\n.bin", "0" * 64)])
    assert problem is not None and "not a regular file" in problem.why and "\n" not in problem.what

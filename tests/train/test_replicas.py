"""What replicas need besides torchft: who reads what, sums, updates that are not made, and state that travels."""

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import monograph.train.trainer
from monograph.config.configurable import check_config
from monograph.errors import ConfigError, MonographError
from monograph.parallel.mesh import Mesh
from monograph.run import train
from monograph.train.data.cursor import Cursor
from monograph.train.data.update_reader import UpdateReader
from monograph.train.layout import plan_run_mesh
from monograph.train.preflight import check_before_start
from monograph.train.replicas.agreement import (
    ReplicaDigest,
    digest_settings,
    digest_state,
    explain_difference,
    read_rows,
)
from monograph.train.replicas.buckets import make_buckets, replace_by_sums
from monograph.train.replicas.peer_state import PeerState, StateMismatch, copy_tensors
from monograph.train.replicas.replicas import Replicas
from monograph.train.replicas.state_server import read_state, write_state
from monograph.train.replicas.torchft_replicas import TorchftReplicas
from tests.kit.runs import change, differing, open_trainer, read_exact, read_step, tiny_run

THREE = {
    "fault_tolerance.replicas": 3,
    "fault_tolerance.min_replicas": 2,
    "fault_tolerance.lighthouse": "http://127.0.0.1:29510",
    "training.global_batch_size": 12,
}


def use(monkeypatch, replicas):
    """Train with these replicas instead of those of the configuration."""

    @contextmanager
    def joined(*_):
        yield replicas

    monkeypatch.setattr(monograph.train.trainer, "joined_replicas", joined)


class Mirror(Replicas):
    """Two replicas of which the other one reads and computes the same: every sum is twice the own value."""

    def add_up(self, tensors):
        for tensor in tensors:
            tensor.mul_(2)


class Refusing(Replicas):
    """Some tries of updates are not made, after their sums were spoilt, nor is the first try to leave."""

    def __init__(self, *tries):
        self.tries, self.count, self.settled = tries, 0, 0

    def settle(self):
        self.settled += 1
        return self.settled > 1

    def add_up(self, tensors):
        if self.count + 1 in self.tries:
            for tensor in tensors:
                tensor.add_(1)

    def commit(self):
        self.count += 1
        return self.count not in self.tries


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"fault_tolerance.replica": 3}, "replica is 3 of replicas 3"),
        ({"fault_tolerance.min_replicas": 4}, "min_replicas is 4 and replicas is 3"),
        ({"fault_tolerance.lighthouse": ""}, "replicas find each other through a lighthouse"),
        ({"training.global_batch_size": -1}, "training.global_batch_size is -1"),
        ({"parallelism.pipeline_parallel_degree": 2}, "a pipeline's schedule has a fixed number of micro-batches"),
        (
            {"dataloader.mixture": ("a=1:a", "b=1:b"), "dataloader.source_loss_interval": 10},
            "source_loss_interval is 10",
        ),
        ({"training.global_batch_size": 8}, "cannot be shared by 3 replicas .* a multiple of 12.*global_batch_size 12"),
        ({"fault_tolerance.replicas": 0}, "fault_tolerance.replicas is 0"),
    ],
)
def test_what_replicas_cannot_do_is_refused_in_words(tmp_path, wrong, text):
    with pytest.raises(ConfigError, match=re.compile(text, re.S)):
        config = tiny_run(tmp_path, {**THREE, **wrong})
        plan_run_mesh(config, 1)


def test_a_run_with_replicas_says_how_to_install_what_is_missing(tmp_path, monkeypatch):
    config = tiny_run(tmp_path, THREE)
    check_config(config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"(?s)torchft is not installed.*pip install.*\[ft\]"):
        check_before_start(config)


def test_every_sample_of_the_updates_made_is_read_once_by_parts_that_change(tmp_path):
    seen = []
    with open_trainer(tiny_run(tmp_path)) as trainer:
        readers = [UpdateReader(trainer.data, local_batch_size=1, global_batch_size=12) for _ in range(3)]
        cursor, each = Cursor(), trainer.data.samples_per_epoch
        for parts, is_made in [(3, True), (3, False), (2, True), (2, False), (2, True), (3, True), (1, True)]:
            read = [readers[part].read(cursor, part, parts) for part in range(parts)]
            numbers = [number for chosen in read for batch in chosen for number in batch.tensors["samples"].tolist()]
            assert len({len(chosen) for chosen in read}) == 1
            if is_made:
                seen += numbers
                cursor = cursor.advance(12, each)
        for reader in readers:
            reader.close()
    assert seen == list(range(60))


def test_gradients_metrics_and_token_counts_are_summed_over_replicas(tmp_path, monkeypatch):
    changes = {"training.global_batch_size": 4, "training.compute_dtype": "float32", "checkpoint.enabled": True}
    loads, update = [], monograph.train.trainer.apply_update

    def keep_load(*args, **kwargs):
        updated = update(*args, **kwargs)
        loads.append(int(updated.metrics["expert_load"].sum()))
        return updated

    monkeypatch.setattr(monograph.train.trainer, "apply_update", keep_load)
    train(tiny_run(tmp_path / "alone", changes, model="deepseek_v3"))
    use(monkeypatch, Mirror())
    train(tiny_run(tmp_path / "mirrored", changes, model="deepseek_v3"))
    alone, mirrored = read_exact(tmp_path / "alone"), read_exact(tmp_path / "mirrored")
    assert alone == mirrored, "half of each, twice: the division by the tokens of both is exact"
    assert loads[3:] == [2 * load for load in loads[:3]], "the experts of both"
    states = [read_step(tmp_path / name, 3) for name in ("alone", "mirrored")]
    assert not differing(*states)


def test_an_update_that_is_not_made_changes_nothing_and_is_made_again(tmp_path, monkeypatch):
    train(tiny_run(tmp_path / "clean", {"checkpoint.enabled": True}))
    use(monkeypatch, replicas := Refusing(1, 3, 4))
    train(tiny_run(tmp_path / "refused", {"checkpoint.enabled": True}))
    assert (replicas.count, replicas.settled) == (6, 2)
    assert read_exact(tmp_path / "refused") == read_exact(tmp_path / "clean")
    assert not differing(read_step(tmp_path / "refused", 3), read_step(tmp_path / "clean", 3))


def test_a_replica_that_is_behind_continues_with_the_bits_of_the_other(tmp_path, monkeypatch):
    """From the state after step 1, as it travels, to the last step; its folder has the checkpoint of that."""
    changes = {"training.steps": 4, "checkpoint.enabled": True}
    sent = {}

    class Source(Replicas):
        def join(self):
            sent.setdefault(trainers[-1].position.step, write_state(trainers[-1].collect_state(), {"step": 0}))

    class Behind(Replicas):
        def join(self):
            if trainers[-1].position.step == 0:
                trainers[-1].restore_state(read_state(sent[1])[0])

    trainers = []
    for name, replicas in (("ahead", Source()), ("behind", Behind())):
        use(monkeypatch, replicas)
        with open_trainer(tiny_run(tmp_path / name, changes, model="deepseek_v3")) as trainer:
            trainers.append(trainer)
            trainer.train()
    assert read_exact(tmp_path / "behind") == read_exact(tmp_path / "ahead")[1:]
    assert not differing(read_step(tmp_path / "behind", 4), read_step(tmp_path / "ahead", 4))


def test_buckets_hold_one_dtype_and_sums_come_back_rounded_once():
    tensors = [torch.arange(4.0), torch.ones(3, 2), torch.full((2,), 1.0, dtype=torch.bfloat16), torch.tensor([7, 8])]
    sizes = [[tensor.dtype for tensor in bucket] for bucket in make_buckets(tensors, limit=40)]
    assert sizes == [[torch.float32, torch.float32], [torch.bfloat16], [torch.int64]]
    replace_by_sums(tensors, lambda flat: flat.add_(flat, alpha=1 / 512) is flat if flat.is_floating_point() else True)
    assert tensors[2].tolist() == [1.0, 1.0], "1 + 1/512 is no bfloat16"
    assert torch.equal(tensors[1], torch.full((3, 2), 1 + 1 / 512))
    before = [tensor.clone() for tensor in tensors]
    replace_by_sums(tensors, lambda flat: flat.zero_() is None)
    assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True)), "a sum that failed"


def test_state_of_another_shape_is_refused_before_anything_is_written():
    live = {"a": torch.zeros(2), "b": torch.zeros(3)}
    with pytest.raises(StateMismatch, match="b is"):
        copy_tensors(live, {"a": torch.ones(2), "b": torch.ones(4)})
    assert live["a"].tolist() == [0, 0]


def test_a_replica_that_is_not_like_the_others_leaves_and_they_stay(tmp_path):
    config, mesh = tiny_run(tmp_path, THREE), Mesh()
    other = tiny_run(tmp_path / "b", {**THREE, "fault_tolerance.replica": 1, "checkpoint.load": "auto"})
    data = {"content_hash": "a"}
    mine = digest_settings(config, mesh, data)
    assert mine == digest_settings(other, mesh, data), "folders and numbers are their own"
    assert mine != digest_settings(other, mesh, {"content_hash": "b"}), "files that differ are other data"
    assert mine == digest_settings(other, mesh, {**data, "revisions": {"a@main": "0" * 40}}), "one looked them up"
    change(other, "dataloader.hf_revision", "main")
    assert mine == digest_settings(other, mesh, data), "the content hash tells commits apart"
    change(other, "optimizer.lr", 1.0)
    assert mine != digest_settings(other, mesh, data)

    values = {"cursor": {"epoch": 0, "sample": 0}, "tokens": 0}
    states = [PeerState({"w": torch.tensor([weight, 2.0])}, values) for weight in (1.0, 1.0, -1.0)]
    rows = [ReplicaDigest(number, 5, 9, digest_state(state)) for number, state in enumerate(states)]
    assert read_rows(sum(row.to_row(number, 3) for number, row in enumerate(rows))) == rows
    errors = [explain_difference(rows, part) for part in range(3)]
    assert errors[:2] == [None, None]
    assert isinstance(errors[2], MonographError) and "does not have the bits of replica 0" in str(errors[2])
    settings = explain_difference([rows[0], replace(rows[1], settings=6)], 1)
    assert "the settings or the data of replica 1 are not those of replica 0" in str(settings)
    twice = explain_difference([rows[0], rows[1], replace(rows[1], replica=0)], 2)
    assert "fault_tolerance.replica is 0, and another" in str(twice)


def test_a_replica_that_cannot_leave_closes_its_connections_and_asks_for_new_ones():
    replicas = object.__new__(TorchftReplicas)
    manager, group, groups = Mock(), Mock(), Mock(any_rank=bool)
    replicas._manager, replicas._group, replicas._groups, replicas._is_last_alone = manager, group, groups, False
    manager.errored.return_value = Mock(original_exception=RuntimeError("[pair.cc:553] Connection closed. And more"))
    assert not replicas.settle() and group.abort.called and manager.should_commit.called
    manager.should_commit.return_value = False
    assert not replicas.commit() and replicas._describe_failure() == "Connection closed"
    manager.reset_mock()
    manager.errored.return_value = None
    assert replicas.settle() and not manager.should_commit.called


def test_torchft_is_an_extra_that_setup_does_not_install():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    dev = re.search(r"^dev = \[(.*)\]$", text, flags=re.M)
    assert re.search(r'^ft = \["torchft', text, flags=re.M) and dev and "torchft" not in dev[1]

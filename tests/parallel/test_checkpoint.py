"""A checkpoint belongs to no layout: what any mesh saved, any other loads, to the bit, and training goes on."""

import json
import math

import pytest
import torch

from monograph.train.checkpoint.verify import verify_checkpoint
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import load_each, run_trainer

LAYOUTS = {
    "one": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tp": 2}),
    "ep2": (2, {"ep": 2}),
    "cp2": (2, {"cp": 2}),
    "dp2_tp2_ep2": (4, {"tp": 2, "ep": 2}),
}
OTHERS = {
    "cp2_tp2": (4, {"cp": 2, "tp": 2, "method": "ulysses"}),
    "hsdp_ep2": (4, {"replicate": 2, "ep": 2}),
    "dp2_tp2_ep2_etp2": (4, {"tp": 2, "ep": 2, "etp": 2}),
}
COVERED = ("dp2", "tp2", "ep2", "cp2", "dp2_tp2_ep2")
"""Layouts whose axes another one has as well: they save in `make test` and load in `make test-long`."""
UNEVEN = {"model.vocab_size": 261, "model.dim": 66, "model.n_layers": 2, "training.global_batch_size": 4}
"""Nothing here divides by 4: what is stored is padded nearly everywhere."""


def config_of(layout, folder, changes=None, **more):
    ranks, degrees = (LAYOUTS | OTHERS)[layout]
    return ranks, tiny("deepseek_v3", folder, {**UNEVEN, **(changes or {})}, **degrees, **more)


def train_on(layout, folder, changes=None, **more):
    ranks, config = config_of(layout, folder, changes, **more)
    return pool.run(ranks, run_trainer, config)[0]


def find_step(folder, step):
    return folder / "run" / "checkpoints" / f"step-{step:08d}"


def read_losses(folder):
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["loss"] for record in records if "loss" in record}


def differing(one, other):
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.fixture(scope="module", params=["fsdp2", pytest.param("graph", marks=pytest.mark.long)])
def saved(request, tmp_path_factory):
    """Every layout trains two steps and saves: layout -> (state, checkpoint), and the way of sharding that loads."""
    folder = tmp_path_factory.mktemp("saved")
    layouts = LAYOUTS | (OTHERS if request.param == "graph" else {})
    states = {}
    for layout in layouts:
        state = train_on(layout, folder / layout, {"training.steps": 2}, fsdp=request.param)
        states[layout] = (state, find_step(folder / layout, 2))
    return states, "graph" if request.param == "fsdp2" else "fsdp2"


@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, marks=pytest.mark.long if each in COVERED else ()) for each in (*LAYOUTS, *OTHERS)],
)
def test_every_layout_loads_what_every_layout_saved_bit_for_bit(layout, saved, tmp_path):
    """One way of sharding saves and the other loads; parameters, both moments and the experts' biases."""
    states, loads_with = saved
    ranks, config = config_of(layout, tmp_path, fsdp=loads_with)
    loaded = pool.run(ranks, load_each, config, [path for _, path in states.values()])[0]
    for (origin, (state, _)), found in zip(states.items(), loaded, strict=True):
        assert any(name.endswith("expert_bias") and value.any() for name, value in state.parameters.items())
        assert any(value.any() for value in state.moments.values())
        assert differing(found.parameters, state.parameters) == [], origin
        assert differing(found.moments, state.moments) == [], origin


def test_a_checkpoint_holds_global_shapes_and_no_padding(saved):
    states, _ = saved
    manifests = {layout: verify_checkpoint(path) for layout, (_, path) in states.items()}
    whole = {name: (record.shape, record.dtype) for name, record in manifests["one"].tensors.items()}
    assert whole["model/embedding.weight"][0] == (261, 66)
    for layout, manifest in manifests.items():
        assert {name: (record.shape, record.dtype) for name, record in manifest.tensors.items()} == whole, layout
        for name, record in manifest.tensors.items():
            stored = sum(math.prod(chunk.sizes) for chunk in record.chunks)
            assert stored == math.prod(record.shape), f"{layout}: {name} stores {stored} elements"
    files = {layout: len(manifest.files) for layout, manifest in manifests.items()}
    assert files["one"] == 1 and files["dp2_tp2_ep2"] == 4, "each rank writes a file of its own"


def test_a_run_continues_on_another_layout_as_if_nothing_had_happened(tmp_path):
    steps = {"checkpoint.interval": 2, "lr_scheduler.decay": "constant", "checkpoint.load": "auto"}
    train_on("one", tmp_path / "alone", {**steps, "training.steps": 6})
    for done, (layout, fsdp) in {2: ("dp2_tp2_ep2", "fsdp2"), 4: ("ep2", "graph"), 6: ("tp2", "fsdp2")}.items():
        train_on(layout, tmp_path / "moved", {**steps, "training.steps": done}, fsdp=fsdp)
    expected, found = read_losses(tmp_path / "alone"), read_losses(tmp_path / "moved")
    assert sorted(found) == sorted(expected) == [1, 2, 3, 4, 5, 6]
    assert all(abs(found[step] / expected[step] - 1) < 1e-5 for step in expected)


@pytest.mark.long
def test_saving_in_the_background_does_not_meet_the_ranks_other_agreements(tmp_path):
    """Every step asks all ranks whether to stop, while a thread of each rank saves the step before."""
    steps = {"training.steps": 12, "checkpoint.interval": 1, "checkpoint.keep_last": 2, "checkpoint.async_save": True}
    state = train_on("dp2", tmp_path, steps)
    ranks, config = config_of("tp2", tmp_path / "other")
    loaded = pool.run(ranks, load_each, config, [find_step(tmp_path, 12)])[0][0]
    assert differing(loaded.parameters, state.parameters) == []

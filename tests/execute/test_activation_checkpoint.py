"""Activation checkpointing changes what is kept and what is recomputed, and nothing else."""

import functools
import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from monograph.errors import ConfigError
from monograph.parallel.groups import joined_groups
from monograph.run import build_step
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import (
    CPU,
    LAYER,
    PATIENCE_SECONDS,
    Update,
    differences,
    force_routing,
    make_updates,
    normalizers_of,
    read_batches,
    small,
)
from tests.execute.watch import CountOps, LiveBytes, find_saved_bytes
from tests.kit.ranks import pool

KINDS = ("none", "full", "selective")
WAYS = {"eager fsdp2": {"parallelism.fsdp": "fsdp2"}, "eager graph": {}, "layer fsdp2": LAYER}
EACH = [pytest.param(way, marks=() if way == "eager graph" else pytest.mark.long) for way in WAYS]
RANKS = 2
ROUTINGS = ((), (2, 3))
TOKENS, TOP_K = 32, 2


@dataclass
class Seen:
    """One way to run: its updates, what ran in one more backward, and what was kept for it."""

    updates: list[Update]
    backward: Counter[str]
    kept_bytes: int


def look(config, groups) -> Seen:
    updates = make_updates(config, groups, routings=ROUTINGS)
    step = build_step(config, groups)
    batch = read_batches(config, step, 1)[0]
    force_routing(step, (0, 1))
    inputs, valid = (
        {"tokens": batch.tensors["tokens"], "labels": batch.tensors["labels"]},
        normalizers_of(step, valid_tokens=30),
    )
    if config.compile.mode == "eager":
        with LiveBytes() as live:
            output = step.forward(inputs, valid)
        kept = live.count()
    else:
        output = step.forward(inputs, valid)
        kept = find_saved_bytes(output.loss)
    with CountOps() as backward:
        step.backward(output.loss)
    return Seen(updates, backward.counts, kept)


def look_on_ranks(configs):
    """As one of the ranks: every way to run with every kind of checkpointing."""
    first = next(iter(configs.values()))
    with joined_groups(plan_run_mesh(first, int(os.environ["WORLD_SIZE"])), CPU) as groups:
        return {name: look(config, groups) for name, config in configs.items()}


@functools.cache
def run(way: str) -> list[dict[str, Seen]]:
    """Two ranks that exchange tokens; the model has a dense block, latent attention, shared and routed experts."""
    with tempfile.TemporaryDirectory() as folder:
        configs = {
            kind: small(
                "deepseek_v3",
                Path(folder),
                {**WAYS[way], "activation_checkpoint.mode": kind},
                experts="grouped",
                ep=2,
            )
            for kind in KINDS
        }
        return pool.run(RANKS, look_on_ranks, configs, timeout_seconds=PATIENCE_SECONDS)


def count_matmuls(seen):
    return sum(seen.backward[name] for name in ("mm", "bmm", "addmm", "_grouped_mm"))


@pytest.mark.parametrize("way", EACH)
def test_checkpointing_leaves_every_bit_as_it_is(way):
    for rank in run(way):
        for kind in KINDS[1:]:
            assert differences(rank["none"].updates, rank[kind].updates) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_blocks_leave_the_bits_of_eager_ones_under_checkpointing(kind):
    for eager, layer in zip(run("eager fsdp2"), run("layer fsdp2"), strict=True):
        assert differences(eager[kind].updates, layer[kind].updates) == []
        assert [update.graphs for update in layer[kind].updates] == [2] * len(ROUTINGS)


@pytest.mark.parametrize("way", EACH)
def test_a_block_that_runs_twice_counts_its_tokens_once(way):
    for rank in run(way):
        for kind in KINDS:
            loads = torch.tensor([update.load for update in rank[kind].updates])
            assert (loads.sum(-1) == TOKENS * TOP_K).all()


@pytest.mark.parametrize("way", EACH)
def test_full_runs_everything_again_and_selective_repeats_nothing_costly(way):
    for rank in run(way):
        none, full, selective = (rank[kind] for kind in KINDS)
        assert count_matmuls(selective) == count_matmuls(none) < count_matmuls(full)
        for name in ("topk", "all_to_all_single"):
            assert selective.backward[name] == none.backward[name] < full.backward[name]
        assert none.backward["topk"] == 0


@pytest.mark.parametrize("way", EACH)
def test_full_keeps_least_and_none_keeps_most(way):
    for rank in run(way):
        none, full, selective = (rank[kind].kept_bytes for kind in KINDS)
        print(way, none, full, selective)
        assert full < 0.5 * none
        assert full < selective < none


@pytest.mark.parametrize(
    ("changes", "what", "do"),
    [
        ({"mode": "min_cut"}, "mode is min_cut and compile.mode is eager", "--compile.mode graph"),
        ({"mode": "budget", "budget_gib": 1.0}, "mode is budget and compile.mode is eager", "--compile.mode graph"),
        ({"mode": "full", "save": ("layers.*.attention.wo::mm",)}, "compile.mode is eager", "--compile.mode graph"),
        ({"mode": "selective", "save": ("layers.*.attention.wo::mm",)}, "with mode selective", "mode full"),
        ({"mode": "full", "save": ("wo",)}, "save has 'wo'", "layers"),
        ({"mode": "budget"}, "mode is budget and budget_gib is 0.0", "budget_gib 8"),
        ({"budget_gib": 2.0}, "mode is auto and budget_gib is 2.0", "--activation_checkpoint.mode budget"),
    ],
)
def test_what_a_mode_cannot_do_is_refused_with_a_way_out(changes, what, do, tmp_path):
    with pytest.raises(ConfigError) as error:
        small("llama3", tmp_path, {f"activation_checkpoint.{name}": value for name, value in changes.items()})
    assert what in error.value.what and do in error.value.do


@pytest.mark.parametrize("name", ["choose_saved", "recompute"])
def test_recomputation_is_refused_without_the_passes_that_do_it(name, tmp_path):
    changes = {"compile.mode": "graph", "passes.off": (name,), "activation_checkpoint.mode": "full"}
    with pytest.raises(ConfigError, match=f"passes.off has {name}"):
        small("llama3", tmp_path, changes)
    small("llama3", tmp_path, {**changes, "activation_checkpoint.mode": "auto"})

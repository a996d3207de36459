"""A rank that computes wrong bits is found by `debug.replay_every`, and it is named."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.parallel.mesh import Mesh
from monograph.parallel.observed_group import SentDigest, digest_bits
from monograph.train.replay_check import find_peers, find_wrong_ranks
from tests.kit.ranks import pool
from tests.kit.runs import read_exact, tiny_run
from tests.kit.tiny import tiny
from tests.train.fault_work import train_with_flips

CHECKED = {"debug.replay_every": 2, "debug.deterministic": True, "training.steps": 4, "compile.mode": "graph"}
LAYOUTS = {
    "fsdp2": ("llama3", 2, {}),
    "tp2": ("llama3", 2, {"tp": 2}),
    "ep2": ("deepseek_v3", 2, {"ep": 2}),
    "hsdp": ("qwen3", 4, {"replicate": 2}),
    "fsdp_tp_ep": ("deepseek_v3", 4, {"tp": 2, "ep": 2}),
    "pp2": ("qwen3", 2, {"pipeline_parallel_degree": 2}),
    "pp2_fsdp2": ("deepseek_v3", 4, {"pipeline_parallel_degree": 2, "pipeline_schedule": "zbv", "shard": 2}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_every_single_flipped_bit_changes_the_digest(dtype):
    values = torch.randint(0, 2, (37,)).to(dtype)
    before = digest_bits([values]).item()
    raw = values.view(torch.uint8)
    for index in range(0, raw.numel(), 5):
        raw[index] ^= 1
        assert digest_bits([values]).item() != before
        raw[index] ^= 1
    assert digest_bits([values]).item() == before
    assert digest_bits([values, values]).item() != before


@pytest.mark.parametrize(
    ("layout", "victim", "is_permanent"),
    [
        ("fsdp2", 1, False),
        ("pp2", 0, False),
        *(
            pytest.param(layout, victim, is_permanent, marks=pytest.mark.long)
            for layout, victim, is_permanent in [
                ("pp2", 1, False),
                ("fsdp2", 0, True),
                ("tp2", 1, False),
                ("ep2", 0, False),
                ("hsdp", 3, False),
                ("hsdp", 2, True),
                ("fsdp_tp_ep", 1, False),
                ("fsdp_tp_ep", 2, False),
                ("fsdp_tp_ep", 3, True),
                ("pp2_fsdp2", 1, False),
                ("pp2_fsdp2", 2, False),
                ("pp2_fsdp2", 3, True),
            ]
        ),
    ],
)
def test_a_planted_bit_flip_is_found_and_the_rank_is_named(layout, victim, is_permanent, tmp_path):
    model, ranks, degrees = LAYOUTS[layout]
    changes = {"training.global_batch_size": 8, "model.n_layers": 4} if layout.startswith("pp") else {}
    config = tiny(model, tmp_path, {**CHECKED, **changes}, **degrees)
    said = pool.run(ranks, train_with_flips, config, victim, is_permanent)
    assert len(set(said)) == 1, "every rank ends with the same error"
    what = said[0].splitlines()[0]
    assert what.startswith("step 2: ") and f"rank {victim} (" in what
    is_pair = is_permanent and layout in ("fsdp2", "fsdp_tp_ep", "pp2_fsdp2")
    assert ("one of" in what) == is_pair, "two ranks that disagree do not say which of them is right"
    assert ("the same wrong bits each time" in said[0]) == is_permanent
    if layout == "pp2":
        where = ("activations that it sent, in the forward", "gradient of activations that it sent, in the backward")
        assert f"first in the {where[victim]} of stage {victim}" in what


@pytest.mark.long
@pytest.mark.parametrize("degrees", [{"tp": 2, "ep": 2}, {"pipeline_parallel_degree": 2, "tp": 2}], ids=str)
def test_checked_runs_on_healthy_ranks_have_the_same_bits_and_finish(degrees, tmp_path):
    changes = {**CHECKED, "training.global_batch_size": 4, "model.n_layers": 2}
    checked = tiny("deepseek_v3", tmp_path / "a", changes, **degrees)
    plain = tiny("deepseek_v3", tmp_path / "b", {**changes, "debug.replay_every": 0}, **degrees)
    assert pool.run(4, train_with_flips, checked, -1, False) == [""] * 4
    assert pool.run(4, train_with_flips, plain, -1, False) == [""] * 4
    assert read_exact(tmp_path / "a" / "run") == read_exact(tmp_path / "b" / "run")


def test_the_first_difference_in_program_order_names_the_rank():
    def sent(*digests):
        return [SentDigest("tp", "all_reduce", digest) for digest in digests]

    good = sent(1, 2, 3)
    found = find_wrong_ranks([(good, good), (good, sent(1, 7, 8)), (good, sent(1, 2, 9)), (good, good)], Mesh(tp=4))
    assert found.ranks == (1,) and found.index == 1 and not found.is_repeatable
    seen = [(good, good), (good, good), (sent(1, 5, 5), sent(1, 5, 5)), (good, good)]
    found = find_wrong_ranks(seen, Mesh(dp_shard=4))
    assert found.ranks == (2,) and found.is_certain and found.is_repeatable


def test_ranks_that_differ_in_data_alone_are_peers():
    assert find_peers(Mesh(dp_shard=2, tp=2)) == [[0, 2], [1, 3]]
    assert find_peers(Mesh(dp_replicate=2, dp_shard=2, ep=2)) == [[0, 2], [1, 3]]


def test_replays_are_refused_where_bits_may_differ_or_cannot_be_seen(tmp_path):
    with pytest.raises(ConfigError, match="deterministic"):
        tiny_run(tmp_path, {"debug.replay_every": 5, "compile.mode": "graph"})
    with pytest.raises(ConfigError, match="FSDP2"):
        tiny_run(tmp_path, {"debug.replay_every": 5, "debug.deterministic": True, "compile.mode": "layer"})
    with pytest.raises(ConfigError, match="replay_every"):
        tiny_run(tmp_path, {"debug.replay_every": -1})

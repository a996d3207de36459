"""Per-layer compile computes what eager computes, bit for bit, on every kind of mesh, however tokens are routed."""

import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.execute.updates import LAYER, PATIENCE_SECONDS, ROUTINGS, Update, differences, on_ranks, small
from tests.kit.ranks import pool


@dataclass(frozen=True)
class Case:
    """A model on a mesh, and how its experts compute."""

    model: str
    experts: str = "loop"
    ranks: int = 1
    degrees: dict[str, Any] = field(default_factory=dict, hash=False)
    graphs: int = 1
    """Kinds of blocks: dense, with experts, or both."""


CASES = {
    "llama3 on one rank": Case("llama3"),
    "qwen3_moe on one rank, loop": Case("qwen3_moe"),
    "deepseek_v3 on one rank, grouped": Case("deepseek_v3", "grouped", graphs=2),
    "qwen3_moe dp2, grouped": Case("qwen3_moe", "grouped", 2),
    "deepseek_v3 ep2, loop": Case("deepseek_v3", "loop", 2, {"ep": 2}, graphs=2),
    "qwen3_moe ep2, grouped": Case("qwen3_moe", "grouped", 2, {"ep": 2}),
    "llama3 tp2": Case("llama3", "grouped", 2, {"tp": 2}),
    "deepseek_v3 dp2 tp2 ep2 etp1, grouped": Case("deepseek_v3", "grouped", 4, {"tp": 2, "ep": 2}, graphs=2),
    "qwen3_moe dp2 tp2 ep2 etp2, loop": Case("qwen3_moe", "loop", 4, {"tp": 2, "ep": 2, "etp": 2}),
}
"""Each family, each mesh, and each way of the experts with and without exchange; `monograph compare` runs the rest."""
SHOWN = ("llama3 on one rank",)


def each(names):
    """One test per case; those that only repeat another on more ranks are long."""
    marked = [name if name in SHOWN else pytest.param(name, marks=pytest.mark.long) for name in names]
    return pytest.mark.parametrize("name", marked)


EACH = each(CASES)


@functools.cache
def run(name: str) -> list[dict[str, list[Update]]]:
    """Rank by rank: the updates of eager and of layer mode."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        ways = {
            mode: small(case.model, Path(folder), changes, experts=case.experts, **case.degrees)
            for mode, changes in (("eager", {"parallelism.fsdp": "fsdp2"}), ("layer", LAYER))
        }
        if case.ranks == 1:
            return [on_ranks(ways["eager"], ways)]
        return pool.run(case.ranks, on_ranks, ways["eager"], ways, timeout_seconds=PATIENCE_SECONDS)


@EACH
def test_compiled_blocks_leave_the_bits_of_eager_ones(name):
    for rank in run(name):
        assert differences(rank["eager"], rank["layer"]) == []


@EACH
def test_nothing_is_compiled_again_when_routing_changes_from_step_to_step(name):
    for rank in run(name):
        assert [update.graphs for update in rank["layer"]] == [CASES[name].graphs] * len(ROUTINGS)
        assert [update.graphs for update in rank["eager"]] == [None] * len(ROUTINGS)


@each([name for name, case in CASES.items() if case.model != "llama3"])
def test_these_steps_do_route_very_differently(name):
    """The two tests above prove nothing unless experts are empty in some steps and crowded in others."""
    for rank in run(name):
        for update, preferred in list(zip(rank["layer"], ROUTINGS, strict=True))[1:]:
            for load in update.load:
                top_k = 1 if CASES[name].model == "qwen3_moe" else 2
                busy = [expert for expert, rows in enumerate(load) if rows]
                assert set(preferred) <= set(busy) or top_k < len(preferred)
                assert len(busy) <= max(top_k, len(preferred))

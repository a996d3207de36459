"""choose_saved: each mode saves what it says, and what crosses to backward shrinks accordingly."""

from dataclasses import replace

import pytest

from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.graph.facts import SavePolicy
from monograph.parallel.mesh import Mesh
from monograph.passes.memory.policies import is_gathered
from monograph.passes.memory.saved import count_saved_bytes, find_crossing
from tests.kit.pipelines import capture_small, make_pass
from tests.passes.written import BACKWARD, ByHand, check_text, run

ALONE = Mesh()


def choose(mode, model="deepseek_v3", mesh=ALONE, **options):
    """The saved nodes in a mode, and how many bytes cross."""
    graph, facts = capture_small(model, mesh)
    facts = replace(facts, activations=SavePolicy(mode=mode, **options))
    kept = make_pass("choose_saved").plan(graph, facts)
    return kept, count_saved_bytes(graph, find_crossing(graph, kept)), graph


def test_matmuls_are_kept_and_what_follows_cheaply_is_computed_again():
    hand = ByHand()
    x, w = hand.input("x", 4, 4), hand.input("w", 4, 4)
    matmul = hand.call(ATEN.mm.default, x, w, path="layers.0.ffn")
    active = hand.call(ATEN.silu.default, matmul, path="layers.0.ffn")
    loss = hand.call(ATEN.sum.default, active, path="layers.0")
    back = hand.call(ATEN.mm.default, active, matmul, path="layers.0.ffn", direction=BACKWARD)
    graph = hand.done(loss, w=back)
    run("choose_saved", graph)
    check_text(
        graph,
        """
        forward block 0:
          0: float32[4, 4] = mm(%x, %w)  # layers.*.ffn saved
          1: float32[4, 4] = silu(f.0)  # layers.*.ffn
          2: float32[] = sum(f.1)  # layers.*
        backward block 0:
          0: float32[4, 4] = mm(f.1, f.0)  # layers.*.ffn
        backward:
          return f0.2, b0.0
        """,
    )


def test_modes_are_ordered_by_what_they_save():
    sizes = {mode: choose(mode)[1] for mode in ("none", "selective", "min_cut", "full")}
    assert sizes["full"] < sizes["min_cut"] <= sizes["selective"] < sizes["none"]


def test_a_budget_is_kept_and_used():
    least, most = choose("full")[1], choose("selective")[1]
    budget = (least + most) / 2
    _, used, _ = choose("budget", budget_gib=budget / 2**30)
    assert least < used <= budget
    assert used > 0.8 * budget, "what fits is kept"


def test_a_budget_below_what_must_be_kept_is_refused_with_the_number():
    least = choose("full")[1]
    with pytest.raises(ConfigError, match="budget_gib") as refused:
        choose("budget", budget_gib=least / 2 / 2**30)
    assert f"{least / 2**30:.3f} GiB cross" in refused.value.why


def test_a_selector_keeps_what_it_names_in_every_block_and_nothing_else():
    plain, more = choose("full")[0], choose("full", save=("layers.*.attention.wo::mm",))
    added = more[0] - {each for each in more[0] if each.name in {node.name for node in plain}}
    assert len(added) == 3, "one matmul in each of three blocks"
    assert all(node.target is ATEN.mm.default for node in added)


def test_a_selector_that_finds_nothing_is_refused_and_told_where_the_op_runs():
    with pytest.raises(ConfigError, match="no node of the step matches") as refused:
        choose("full", save=("layers.*.attention.wx::mm",))
    assert "mm runs in" in refused.value.why


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_gathered_parameters_are_kept_only_without_resharding(mode):
    mesh = Mesh(dp_shard=2)
    graph, facts = capture_small("llama3", mesh)
    chosen = make_pass("choose_saved")
    for reshard in (True, False):
        changed = replace(facts, reshard=reshard, activations=SavePolicy(mode=mode))
        kept = chosen.plan(graph, changed)
        gathered = [node for node in graph.nodes if is_gathered(node)]
        assert {node in kept for node in gathered} == {not reshard}

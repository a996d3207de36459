"""Verify catches wrong parallel programs and says where they are wrong. One planted bug at a time."""

import re

import pytest

from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_with_bug
from tests.verify.seeded_bugs import BUGS

QUICK = (
    "labels_shifted_within_a_part",
    "second_slices_in_rank_order",
    "gradients_of_keys_of_the_first_call",
    "missing_sum_of_a_norm",
    "missing_sum_of_a_router",
    "doubled_tied_gradient",
    "exchanged_over_the_wrong_group",
    "averaged_twice",
    "split_sizes_swapped_in_backward",
    "slice_of_the_next_rank",
    "norm_counted_twice",
    "loss_without_offset",
    "bias_not_summed",
    "router_counts_of_one_rank_for_the_global_batch",
    "same_data_everywhere",
    "one_rank_updates_more",
    "shards_in_another_order",
)
"""One bug of each kind: of context, tensor, expert and data parallelism, of losses, norms, routers and random state."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in BUGS])
def test_a_planted_bug_is_caught_and_located(name, tmp_path):
    bug = BUGS[name]
    config = tiny(bug.model, tmp_path, bug.changes, **bug.degrees)
    if bug.raises:
        with pytest.raises(Exception) as caught:
            pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)
        assert f"verify: {bug.blame}" in getattr(caught.value, "__notes__", [])
        return
    verdict = pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)[0]
    assert not verdict.is_equal
    assert re.match(bug.blame, verdict.blame), verdict.blame


REFUSED = {
    "doubled_tied_gradient": "the finished gradient of embedding.weight is changed",
    "averaged_twice": "the finished gradient of layers.0.attention.wo.weight is changed",
    "expert_gradients_scaled_by_ep": "the finished gradient of layers.1.moe.experts.w2 is changed",
    "split_sizes_swapped_in_backward": r"rows sends(.|\n)*layers.2.moe, backward",
    "split_sizes_swapped_on_the_way_home": r"rows sends(.|\n)*layers.1.moe, forward",
}
"""Bugs that the checks of a captured graph find, before it runs."""
IN_A_GRAPH = "missing_sum_of_a_norm"
"""The bug of `make test` in a captured step; it is in the second block."""
FAILS = {"exchanged_over_the_wrong_group": "in layers.1.moe, forward"}
"""Bugs that a captured graph fails with, and the note on where."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == IN_A_GRAPH else pytest.mark.long) for name in BUGS if "fsdp2" not in name],
)
def test_a_planted_bug_is_caught_and_located_in_a_captured_step(name, tmp_path):
    bug = BUGS[name]
    small = {"model.n_layers": 2} if name == IN_A_GRAPH else {}
    changes = {"compile.mode": "graph", **small, **bug.changes}
    config = tiny(bug.model, tmp_path, changes, **{**bug.degrees, "fsdp": "auto"})
    if name in REFUSED or name in FAILS:
        with pytest.raises(Exception, match=REFUSED.get(name)) as caught:
            pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)
        notes = getattr(caught.value, "__notes__", [])
        assert name in REFUSED or any(note.startswith(FAILS[name]) for note in notes)
        return
    verdict = pool.run(bug.ranks, verify_with_bug, config, name, timeout_seconds=60)[0]
    assert not verdict.is_equal
    assert re.match(bug.blame, verdict.blame), verdict.blame

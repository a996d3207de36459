"""Faults planted in the source files of parallelism are named by module, and by the sum that is missing."""

import re

import pytest

from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.simulate.run import simulate
from tests.kit.tiny import tiny
from tests.verify.seeded_bugs import BUGS

BLAMES = {
    "missing_sum_of_a_norm": r"partial over tp reaches layers.1.ffn_norm.weight: no all_reduce over tp \(layers.1.ffn_",
    "missing_sum_over_replicas": r"partial over dp_replicate reaches layers.0.feed_forward.w2.weight: no all_reduce",
    "slice_of_the_next_rank": r".*\(layers.1.attention, monograph/",
    "missing_sum_of_a_latent_norm": r"partial over tp reaches layers.1.attention.kv_norm.weight",
    "missing_sum_of_a_router": r"partial over tp reaches layers.1.moe.router.gate.weight",
    "gradients_of_keys_of_the_first_call": r".*\(layers.1.attention.attend",
    "exchanged_over_the_wrong_group": r".*\(layers.1.moe",
    "labels_shifted_within_a_part": r".*\(head, monograph/models/loss.py",
    "second_slices_in_rank_order": r".*\(layers.0.attention, monograph/models/latent_attention.py",
    "positions_counted_within_a_part": r".*\(rope, monograph/models/rope.py",
    "documents_begin_with_slices": r".*\(layers.0.attention",
    "shared_sequences_ignored": r".*\(layers.0.attention",
    "router_counts_of_a_part_of_the_sequence": r"partial over cp reaches .*\(load_balance",
    "router_counts_of_one_rank_for_the_global_batch": r"load_balancing_loss",
    "router_counts_of_a_slice_of_the_sequence": r"partial over tp reaches .*\(load_balance",
    "scattered_over_the_wrong_group": r"reduce_scatter_tensor over fsdp_scatter of what is partial over tp.*layers.1",
    "slice_of_the_next_rank_after_the_embedding": r".*\(embedding",
    "slice_of_the_next_rank_in_backward": r".*\(head",
    "sinks_summed_over_other_heads": r".*layers.0.attention.heads.sinks",
    "sinks_of_other_heads": r".*\(layers.0.attention.heads.attend",
    "gradients_of_sinks_of_one_slice": r".*layers.1.attention.heads",
    "expert_bias_of_every_etp_rank": r".*\(layers.0.moe",
    "missing_sum_of_an_expert_bias": r"partial over tp reaches layers.1.moe.bias.weight",
    "missing_sum_of_a_router_bias": r"partial over tp reaches layers.0.moe.router.gate.bias",
    "missing_sum_of_an_attention_bias": r"partial over tp reaches layers.1.attention.bias",
    "expert_bias_scattered_over_its_peers": r".*layers.1.moe.experts.bias",
    "missing_sum_of_experts_over_replicas": r"partial over dp_replicate reaches layers.0.moe.experts.w2",
    "missing_sum_of_shared_experts_over_replicas": r"partial over dp_replicate reaches layers.2.moe.shared_experts.w1",
    "answers_averaged_over_etp": r".*\(layers.0.moe",
    "auxiliary_loss_times_cp": r".*load_balanc",
    "auxiliary_loss_of_one_tp_rank": r".*load_balanc",
    "loss_of_every_tp_rank": r".*\(head",
    "tied_gradient_of_the_head_alone": r".*embedding",
    "tied_gradients_of_own_stages": r".*embedding",
    "windows_of_whole_texts": r".*\(layers.0.attention",
    "chunks_begin_with_slices": r".*\(layers.0.attention",
    "heads_in_another_order": r".*\(layers.0.attention.attend",
    "gradients_of_latents_of_the_first_call": r".*\(layers.2.attention",
}
"""A planted fault -> how its verdict begins."""
OUTSIDE = {
    "tokens_counted_by_every_rank": "outside of the graph: counts that sums are divided by differs by 1.0e",
    "loss_averaged_over_parts": "outside of the graph: loss of the update differs by 5.0e-01",
    "norm_counted_twice": "outside of the graph: gradient norm differs",
    "norm_of_own_shards": "outside of the graph: gradient norm differs",
    "bias_not_summed": "outside of the graph: expert_load of the update differs",
    "auxiliary_loss_divided_by_own_sequences": "outside of the graph: counts that sums are divided by differs",
    "norm_of_experts_over_their_replicas": "outside of the graph: gradient norm differs",
    "loss_of_one_replica": "outside of the graph: loss of the update differs",
}
"""Faults that are not in the graph of a micro-batch."""
QUICK = ("tokens_counted_by_every_rank", "norm_counted_twice", "missing_sum_of_a_norm")


def plan_bug(bug, folder):
    """The run that a bug hides in; ranks that no degree asks for share data."""
    degrees = {name: value for name, value in bug.degrees.items() if name != "fsdp"}
    config = tiny(bug.model, folder, bug.changes, **degrees)
    missing = bug.ranks // count_ranks(config.parallelism)
    if missing > 1:
        config = config.replace(parallelism=config.parallelism.replace(data_parallel_shard_degree=missing))
    return config, plan_run_mesh(config, bug.ranks)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in OUTSIDE | BLAMES]
)
def test_a_planted_fault_is_named(name, tmp_path):
    config, mesh = plan_bug(BUGS[name], tmp_path)
    with BUGS[name].plant():
        found = simulate(config, mesh)
    assert not found.is_equal
    assert re.match((OUTSIDE | BLAMES)[name], found.blame), found.blame

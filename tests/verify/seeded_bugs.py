"""The planted bugs that verify must catch and locate, and how its verdict must begin."""

from dataclasses import dataclass, field
from typing import Any

from monograph.axes import Group
from monograph.parallel.collectives import reduce_scatter_autograd
from monograph.parallel.context_ulysses import UlyssesAttention
from monograph.parallel.tensor import VocabEmbedding, VocabLoss
from tests.verify.context_bugs import (
    counted_by_every_rank,
    documents_begin_with_slices,
    gradients_of_the_first_call,
    labels_of_own_tokens,
    loss_averaged_over_parts,
    positions_of_own_tokens,
    second_slices_in_rank_order,
    shared_sequences_ignored,
)
from tests.verify.corner_bugs import (
    answers_averaged_over_etp,
    auxiliary_loss_of_one_tp_rank,
    auxiliary_loss_times_cp,
    chunks_begin_with_slices,
    expert_bias_of_every_etp_rank,
    heads_in_another_order,
    latents_of_the_first_call,
    loss_of_every_tp_rank,
    loss_of_one_replica,
    norm_of_experts_over_their_replicas,
    reduced_over,
    sinks_of_one_slice,
    thought_to_be_whole,
    tied_gradient_of_the_head_alone,
    tied_gradients_of_own_stages,
    windows_of_whole_texts,
)
from tests.verify.plantings import (
    Planting,
    averaged_by_fsdp2,
    changed_border,
    changed_gradient,
    counts_of_own_tokens_only,
    gathered_in_another_order,
    loads_of_own_tokens_only,
    missing_sum,
    next_ranks_slice,
    norm_of_own_shards_only,
    norm_of_replicas_counted_twice,
    one_rank_updates_more,
    other_bias_on_one_rank,
    own_sequences_only,
    peers_of_the_other_axis,
    same_data_everywhere,
    slice_off_in_backward,
    starting_rows_of_rank_0,
    swapped_in_backward,
    swapped_on_the_way_home,
    thought_to_be_cut,
    without_offset,
)


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A planting, the plan it hides in, and how the verdict that names it begins (a regular expression)."""

    plant: Planting
    blame: str
    model: str = "deepseek_v3"
    ranks: int = 2
    degrees: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the tiny run."""
    raises: bool = False
    """Whether the step cannot even finish; then the error's note must name the place."""


TP, EP, CP, ETP = {"tp": 2}, {"ep": 2}, {"cp": 2}, {"tp": 2, "etp": 2}
ULYSSES = {"cp": 2, "method": "ulysses"}

BUGS: dict[str, Bug] = {
    "labels_shifted_within_a_part": Bug(
        plant=labels_of_own_tokens, model="llama3", degrees=CP, blame="loss: it differs"
    ),
    "positions_counted_within_a_part": Bug(
        plant=positions_of_own_tokens, model="qwen3", degrees=CP, blame="layers.0.attention: its output differs"
    ),
    "documents_begin_with_slices": Bug(
        plant=documents_begin_with_slices,
        degrees=CP,
        changes={"model.mask": "document"},
        blame="layers.0.attention: its output differs",
    ),
    "shared_sequences_ignored": Bug(
        plant=shared_sequences_ignored, model="llama3", degrees=CP, blame="layers.0.attention: its output differs"
    ),
    "tokens_counted_by_every_rank": Bug(
        plant=counted_by_every_rank, model="llama3", degrees=CP, blame="loss: it differs by 5.0e-01"
    ),
    "loss_averaged_over_parts": Bug(
        plant=loss_averaged_over_parts, model="llama3", degrees=CP, blame="loss: it differs by 5.0e-01"
    ),
    "second_slices_in_rank_order": Bug(
        plant=second_slices_in_rank_order, degrees=CP, blame="layers.0.attention: its output differs"
    ),
    "gradients_of_keys_of_the_first_call": Bug(
        plant=gradients_of_the_first_call,
        model="qwen3",
        degrees=CP,
        blame="layers.1.attention.k_norm: its gradient differs",
    ),
    "router_counts_of_a_part_of_the_sequence": Bug(
        plant=counts_of_own_tokens_only, blame="load_balancing_loss: it differs", degrees=CP
    ),
    "missing_sum_of_a_norm": Bug(
        plant=missing_sum("layers.1.ffn_norm.weight", Group.TP_GRADS),
        degrees={**TP, "fsdp": "graph"},
        blame="layers.1.ffn_norm: its gradient differs",
    ),
    "missing_sum_of_a_latent_norm": Bug(
        plant=missing_sum("layers.1.attention.kv_norm.weight", Group.TP_GRADS),
        degrees={**TP, "fsdp": "graph"},
        blame="layers.1.attention.kv_norm: its gradient differs",
    ),
    "missing_sum_of_a_router": Bug(
        plant=thought_to_be_cut("layers.1.moe.router.gate.weight"),
        degrees={**TP, "fsdp": "fsdp2"},
        blame="layers.1.moe.router.gate: its gradient differs",
    ),
    "missing_sum_over_replicas": Bug(
        plant=missing_sum("layers.0.feed_forward.w2.weight", Group.DP_REPLICATE),
        degrees={"replicate": 2, "fsdp": "graph"},
        blame="layers.0.feed_forward.w2: its gradient differs",
    ),
    "doubled_tied_gradient": Bug(
        plant=changed_gradient("embedding.weight", lambda gradient, slot: gradient * len(slot.names)),
        model="qwen3",
        degrees={"fsdp": "graph"},
        blame="embedding: its gradient differs",
    ),
    "scattered_over_the_wrong_group": Bug(
        plant=changed_border(
            "layers.1.attention", lambda stream: reduce_scatter_autograd(stream, 1, 2, Group.FSDP_SCATTER)
        ),
        ranks=4,
        degrees=TP,
        blame="layers.1.attention: its output differs",
    ),
    "exchanged_over_the_wrong_group": Bug(
        plant=peers_of_the_other_axis, ranks=4, degrees=EP, blame="layers.1.moe: its output differs"
    ),
    "averaged_twice": Bug(
        plant=changed_gradient("layers.0.attention.wo.weight", lambda gradient, slot: gradient / slot.mesh.fsdp),
        degrees={"fsdp": "graph"},
        blame="layers.0.attention.wo: its gradient differs by 5.0e-01",
    ),
    "averaged_twice_by_fsdp2": Bug(
        plant=averaged_by_fsdp2, degrees={"fsdp": "fsdp2"}, blame="head.output: its gradient differs by 5.0e-01"
    ),
    "split_sizes_swapped_on_the_way_home": Bug(
        plant=swapped_on_the_way_home, degrees=EP, blame="step 1 failed in layers.1.moe", raises=True
    ),
    "split_sizes_swapped_in_backward": Bug(
        plant=swapped_in_backward, degrees=EP, blame="step 1 failed in the backward of layers.2.moe", raises=True
    ),
    "slice_of_the_next_rank": Bug(
        plant=changed_border("layers.1.attention", next_ranks_slice),
        degrees=TP,
        blame="layers.1.attention: its output differs",
    ),
    "slice_of_the_next_rank_after_the_embedding": Bug(
        plant=changed_border("embedding", next_ranks_slice), degrees=TP, blame="embedding: its output differs"
    ),
    "slice_of_the_next_rank_in_backward": Bug(
        plant=slice_off_in_backward, degrees=TP, blame="head.norm: its gradient differs"
    ),
    "expert_gradients_scaled_by_ep": Bug(
        plant=changed_gradient("layers.1.moe.experts.w2", lambda gradient, slot: gradient * slot.mesh.ep),
        degrees={**EP, "fsdp": "graph"},
        blame="layers.1.moe.experts: its gradient differs by 1.0e.00",
    ),
    "norm_counted_twice": Bug(plant=norm_of_replicas_counted_twice, degrees=TP, blame="grad_norm: it differs"),
    "norm_of_own_shards": Bug(plant=norm_of_own_shards_only, blame="grad_norm: it differs"),
    "embedding_without_offset": Bug(
        plant=lambda: without_offset(VocabEmbedding), degrees=TP, blame="embedding: its output differs"
    ),
    "loss_without_offset": Bug(plant=lambda: without_offset(VocabLoss), degrees=TP, blame="loss: it differs"),
    "bias_not_summed": Bug(plant=loads_of_own_tokens_only, blame="expert_load: it differs", degrees=EP),
    "router_counts_of_a_slice_of_the_sequence": Bug(
        plant=counts_of_own_tokens_only, blame="load_balancing_loss: it differs", degrees=TP
    ),
    "router_counts_of_one_rank_for_the_global_batch": Bug(
        plant=counts_of_own_tokens_only, blame="load_balancing_loss: it differs", model="qwen3_moe"
    ),
    "auxiliary_loss_divided_by_own_sequences": Bug(
        plant=own_sequences_only, blame="load_balancing_loss: it differs by 1.0e.00", model="qwen3_moe"
    ),
    "same_data_everywhere": Bug(plant=same_data_everywhere, blame="embedding: its output differs"),
    "starting_rows_of_rank_0": Bug(
        plant=starting_rows_of_rank_0, blame="layers.1.attention.wq_b: its starting values differ"
    ),
    "one_rank_updates_more": Bug(
        plant=one_rank_updates_more, model="llama3", degrees=TP, blame="embedding: its update differs"
    ),
    "other_bias_on_one_rank": Bug(
        plant=other_bias_on_one_rank, blame=r"layers.1.moe.router: \d+ tokens chose other experts"
    ),
    "shards_in_another_order": Bug(
        plant=gathered_in_another_order, degrees={"fsdp": "graph"}, blame="embedding: its output differs"
    ),
    "sinks_summed_over_other_heads": Bug(
        plant=thought_to_be_whole("layers.0.attention.heads.sinks"),
        model="gpt_oss",
        degrees={**TP, "fsdp": "graph"},
        blame="layers.0.attention.heads: its gradient differs",
    ),
    "sinks_of_other_heads": Bug(
        plant=lambda: without_offset(UlyssesAttention),
        model="gpt_oss",
        degrees=ULYSSES,
        blame="layers.0.attention: its output differs",
    ),
    "gradients_of_sinks_of_one_slice": Bug(
        plant=sinks_of_one_slice,
        model="gpt_oss",
        degrees=CP,
        blame=r"layers.1.attention.heads: its gradient differs",
    ),
    "expert_bias_of_every_etp_rank": Bug(
        plant=expert_bias_of_every_etp_rank, model="gpt_oss", degrees=ETP, blame="layers.0.moe: its output differs"
    ),
    "missing_sum_of_an_expert_bias": Bug(
        plant=missing_sum("layers.1.moe.bias.weight", Group.TP_GRADS),
        model="gpt_oss",
        degrees={**TP, **EP, "fsdp": "graph"},
        blame="layers.1.moe.bias: its gradient differs",
    ),
    "missing_sum_of_a_router_bias": Bug(
        plant=missing_sum("layers.0.moe.router.gate.bias", Group.TP_GRADS),
        model="gpt_oss",
        degrees={**TP, "fsdp": "graph"},
        blame="layers.0.moe.router.gate: its gradient differs",
    ),
    "missing_sum_of_an_attention_bias": Bug(
        plant=missing_sum("layers.1.attention.bias", Group.TP_GRADS),
        model="gpt_oss",
        degrees={**TP, "fsdp": "graph"},
        blame="layers.1.attention: its gradient differs",
    ),
    "expert_bias_scattered_over_its_peers": Bug(
        plant=reduced_over("layers.1.moe.experts.bias.weight", {Group.EFSDP_SCATTER: Group.EP}),
        model="gpt_oss",
        ranks=4,
        degrees={**EP, "fsdp": "graph"},
        blame="layers.1.moe.experts.bias: its gradient differs",
    ),
    "missing_sum_of_experts_over_replicas": Bug(
        plant=missing_sum("layers.0.moe.experts.w2", Group.DP_REPLICATE),
        model="qwen3_moe",
        degrees={"replicate": 2, "fsdp": "graph"},
        blame="layers.0.moe.experts: its gradient differs",
    ),
    "missing_sum_of_shared_experts_over_replicas": Bug(
        plant=missing_sum("layers.2.moe.shared_experts.w1.weight", Group.DP_REPLICATE),
        degrees={"replicate": 2, "fsdp": "graph"},
        blame="layers.2.moe.shared_experts.w1: its gradient differs",
    ),
    "answers_averaged_over_etp": Bug(
        plant=answers_averaged_over_etp, model="qwen3_moe", degrees=ETP, blame="layers.0.moe: its output differs"
    ),
    "auxiliary_loss_times_cp": Bug(
        plant=auxiliary_loss_times_cp,
        model="qwen3_moe",
        degrees=CP,
        blame=r"load_balancing_loss: it differs by 1.0e.00",
    ),
    "auxiliary_loss_of_one_tp_rank": Bug(
        plant=auxiliary_loss_of_one_tp_rank, model="qwen3_moe", degrees=TP, blame="load_balancing_loss: it differs"
    ),
    "norm_of_experts_over_their_replicas": Bug(
        plant=norm_of_experts_over_their_replicas, model="qwen3_moe", degrees=EP, blame="grad_norm: it differs"
    ),
    "loss_of_one_replica": Bug(
        plant=loss_of_one_replica, model="llama3", degrees={"replicate": 2}, blame="loss: it differs"
    ),
    "loss_of_every_tp_rank": Bug(
        plant=loss_of_every_tp_rank,
        model="llama3",
        degrees={**TP, "fsdp": "graph"},
        blame=r"head.output: its gradient differs by 1.0e.00",
    ),
    "tied_gradient_of_the_head_alone": Bug(
        plant=tied_gradient_of_the_head_alone,
        model="gemma3",
        degrees=TP,
        blame="(embedding: its gradient|layers.0.attention_norm: the gradient it passes back) differs",
    ),
    "tied_gradients_of_own_stages": Bug(
        plant=tied_gradients_of_own_stages,
        model="qwen3",
        degrees={"pipeline_parallel_degree": 2},
        changes={"training.global_batch_size": 2},
        blame="embedding: its gradient differs",
    ),
    "windows_of_whole_texts": Bug(
        plant=windows_of_whole_texts, model="mistral", degrees=CP, blame="layers.0.attention: its output differs"
    ),
    "chunks_begin_with_slices": Bug(
        plant=chunks_begin_with_slices, model="llama4", degrees=CP, blame="layers.0.attention: its output differs"
    ),
    "heads_in_another_order": Bug(
        plant=heads_in_another_order, model="llama3", degrees=ULYSSES, blame="layers.0.attention: its output differs"
    ),
    "gradients_of_latents_of_the_first_call": Bug(
        plant=latents_of_the_first_call,
        degrees={**CP, "gather": "latent"},
        blame="layers.2.attention.wkv_b: its gradient differs",
    ),
}

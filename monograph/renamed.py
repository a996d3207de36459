"""Names that were changed, for errors about files and flags from before the change.

The old name is not accepted; whoever wrote it is told the new one. Nothing else in the package may use an old name.
"""

from collections.abc import Iterable, Mapping

RENAMED = {
    # passes and their options
    "share_gathers": "dedupe_all_gathers",
    "join_chunks": "merge_chunks",
    "offload_saved": "offload_activations",
    "split_groups": "split_communicators",
    "prefetch_gathers": "prefetch_all_gathers",
    "join_products": "merge_matmuls",
    "keep_weights": "cache_cast_weights",
    "fuse_products": "fuse_swiglu_epilogue",
    # other fields
    "slice_tokens": "chunk_tokens",
    # classes of Configs
    "OffloadSavedConfig": "OffloadActivationsConfig",
    "PrefetchGathersConfig": "PrefetchAllGathersConfig",
    "JoinProductsConfig": "MergeMatmulsConfig",
    "KeepWeightsConfig": "CacheCastWeightsConfig",
    "FuseProductsConfig": "FuseSwigluEpilogueConfig",
}
"""Old name -> new name: of a field, a pass or a class of a Config."""

RENAMED_OPS = {
    "gate": "swiglu",
    "gate_backward": "swiglu_backward",
    "gate_backward_again": "swiglu_backward_recompute",
    "gate_backward_joined": "swiglu_backward_packed",
    "gate_backward_joined_again": "swiglu_backward_packed_recompute",
    "gated_product": "matmul_swiglu",
    "product_gate_backward": "matmul_swiglu_backward",
    "rotate": "rope",
    "rotate_joined": "rope_packed",
    "norm_backward_again": "norm_backward_recompute",
    "sliced_loss": "chunked_cross_entropy",
}
"""Old name -> new name of a custom op, without its namespace."""


def find_new_name(old: str, choices: Iterable[str], renamed: Mapping[str, str] = RENAMED) -> str:
    """What a dotted name is called now, if that is one of the choices, else an empty string."""
    new = ".".join(renamed.get(part, part) for part in old.split("."))
    return new if new != old and new in choices else ""

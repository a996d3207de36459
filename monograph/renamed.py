"""Names that were changed, for errors about files and flags from before the change.

The old name is not accepted; whoever wrote it is told the new one. Nothing else in the package may use an old name.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

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
    "validation_dataset": "validation_datasets",
}
"""Old name -> new name: of a field or a pass."""

RENAMED_CLASSES = {
    "passes.config:OffloadSavedConfig": "passes.memory.offload_activations_options:OffloadActivationsConfig",
    "passes.config:BucketCollectivesConfig": "passes.comm.bucket_collectives_options:BucketCollectivesConfig",
    "passes.config:PrefetchGathersConfig": "passes.comm.prefetch_all_gathers_options:PrefetchAllGathersConfig",
    "passes.config:OverlapExpertsConfig": "passes.overlap.overlap_experts_options:OverlapExpertsConfig",
    "passes.config:JoinProductsConfig": "passes.compute.merge_matmuls_options:MergeMatmulsConfig",
    "train.config:OptimizerConfig": "train.optimizer_config:AdamWConfig",
    "train.config:LrSchedulerConfig": "train.lr_scheduler_config:WarmupDecayConfig",
    "train.data.config:TokenizerConfig": "train.data.tokenizer_config:StandardTokenizerConfig",
    "passes.config:MarkRegionsConfig": "passes.compile.mark_regions_options:MarkRegionsConfig",
}
"""Old module and name within the package -> new ones, of the class of a Config."""

REPLACED = {
    "passes.*.enabled": "name the pass in passes.on or passes.off instead",
    "passes.narrow_gradients": "name it in passes.on, or write compile.numerics fast",
    "passes.cache_cast_weights": "it follows parallelism.reshard_after_forward; name it in passes.on or passes.off",
    "passes.keep_weights": "it is called cache_cast_weights, and follows parallelism.reshard_after_forward",
    "passes.compile_whole": "name it in passes.on",
    "passes.fuse_products": "it is called fuse_swiglu_epilogue: name it in passes.on, or write compile.numerics fast",
    "passes.choose_saved": "activation_checkpoint has mode, save and budget_gib now",
    "passes.choose_saved.policy": "write activation_checkpoint.mode (all is called none, default is called selective)",
    "passes.choose_saved.save": "write activation_checkpoint.save",
    "passes.choose_saved.budget_gib": "write activation_checkpoint.budget_gib",
    "passes.overlap_experts.tflops": "write machine: a name, or a .json file",
    "passes.overlap_experts.memory_tb_per_second": "write machine: a name, or a .json file",
    "passes.overlap_experts.link_*": "write machine: a name, or a .json file",
    "validator.steps": "write validator.samples: sequences of each set, whatever the batch and the mesh are",
    "model.attention.sdpa": "write kernel: auto, flash, cudnn or reference",
    "compile.partition": "write activation_checkpoint.mode min_cut",
    "compile.expert_overlap.schedule": "to switch it off, name overlap_experts in passes.off",
}
"""Fields that are gone -> what to do instead; `*` stands for any part of a name."""

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


def find_replacement(old: str) -> str:
    """What to do instead of setting a field that is gone, or an empty string."""
    return next((do for pattern, do in REPLACED.items() if fnmatchcase(old, pattern)), "")


def find_new_name(old: str, choices: Iterable[str], renamed: Mapping[str, str] = RENAMED) -> str:
    """What a dotted name is called now, if that is one of the choices, else an empty string."""
    new = ".".join(renamed.get(part, part) for part in old.split("."))
    return new if new != old and new in choices else ""

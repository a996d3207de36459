"""The passes in the order they run: one list, written by hand. Loads without torch, so that names can be checked."""

from dataclasses import dataclass
from typing import Any, Literal

from monograph.passes.comm.bucket_collectives_options import BucketCollectivesConfig
from monograph.passes.comm.prefetch_all_gathers_options import PrefetchAllGathersConfig
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.compute.merge_matmuls_options import MergeMatmulsConfig
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.options import PassOptions
from monograph.passes.overlap.overlap_experts_options import OverlapExpertsConfig


@dataclass(frozen=True)
class PassEntry:
    """One pass of the order: where it is, when it runs, and what can be chosen about it."""

    reference: str
    """module:class, imported when the pass is built."""
    options: type[PassOptions] = PassOptions
    """Fields of it become `--passes.NAME.FIELD`."""
    default: Literal["on", "fast", "float8", "off"] = "on"
    """on: wherever it has something to do; fast: with compile.numerics fast or float8; float8: with float8; off: only
    when asked for."""
    needs: tuple[str, ...] = ()
    """Passes it builds on: without one of them it does not run."""
    not_with: tuple[str, ...] = ()
    """Passes that leave it nothing to do."""
    loaded: Any = None
    """The class itself, of a pass in `passes.extra`."""


PASS = "monograph.passes.base:Pass"
"""What every pass derives from."""


ORDER = {
    "elide_trivial_collectives": PassEntry("monograph.passes.comm.elide_trivial_collectives:ElideTrivialCollectives"),
    "remove_no_ops": PassEntry("monograph.passes.clean.remove_no_ops:RemoveNoOps"),
    "remove_dead_code": PassEntry("monograph.passes.clean.remove_dead_code:RemoveDeadCode"),
    "dedupe_all_gathers": PassEntry("monograph.passes.clean.dedupe_all_gathers:DedupeAllGathers"),
    "merge_chunks": PassEntry("monograph.passes.overlap.merge_chunks:MergeChunks"),
    "choose_saved": PassEntry("monograph.passes.memory.choose_saved:ChooseSaved"),
    "recompute": PassEntry("monograph.passes.memory.recompute:Recompute"),
    "offload_activations": PassEntry(
        "monograph.passes.memory.offload_activations:OffloadActivations", OffloadActivationsConfig, default="off"
    ),
    "chunk_experts": PassEntry("monograph.passes.overlap.chunk_experts:ChunkExperts"),
    "narrow_gradients": PassEntry("monograph.passes.memory.narrow_gradients:NarrowGradients", default="fast"),
    "split_communicators": PassEntry("monograph.passes.comm.split_communicators:SplitCommunicators"),
    "bucket_collectives": PassEntry(
        "monograph.passes.comm.bucket_collectives:BucketCollectives", BucketCollectivesConfig
    ),
    "prefetch_all_gathers": PassEntry(
        "monograph.passes.comm.prefetch_all_gathers:PrefetchAllGathers", PrefetchAllGathersConfig
    ),
    "overlap_experts": PassEntry("monograph.passes.overlap.overlap_experts:OverlapExperts", OverlapExpertsConfig),
    "merge_matmuls": PassEntry(
        "monograph.passes.compute.merge_matmuls:MergeMatmuls", MergeMatmulsConfig, default="fast"
    ),
    "quantize_matmuls": PassEntry(
        "monograph.passes.compute.quantize_matmuls:QuantizeMatmuls", QuantizeMatmulsConfig, default="float8"
    ),
    "gather_float8": PassEntry(
        "monograph.passes.comm.gather_float8:GatherFloat8", default="float8", needs=("quantize_matmuls",)
    ),
    "cache_float8_weights": PassEntry(
        "monograph.passes.memory.cache_float8_weights:CacheFloat8Weights",
        default="float8",
        needs=("quantize_matmuls",),
        not_with=("compile_whole",),
    ),
    "join_parameters": PassEntry("monograph.passes.memory.join_parameters:JoinParameters", not_with=("compile_whole",)),
    "cache_cast_weights": PassEntry(
        "monograph.passes.memory.cache_cast_weights:CacheCastWeights", not_with=("compile_whole",)
    ),
    "mark_regions": PassEntry("monograph.passes.compile.mark_regions:MarkRegions", MarkRegionsConfig, default="off"),
    "compile_regions": PassEntry("monograph.passes.compile.compile_regions:CompileRegions", needs=("mark_regions",)),
    "compile_whole": PassEntry("monograph.passes.compile.compile_whole:CompileWhole", default="off"),
    "compile_flex": PassEntry("monograph.passes.compile.compile_flex:CompileFlex"),
    "fuse_embedding_gradient": PassEntry(
        "monograph.passes.compute.fuse_embedding_gradient:FuseEmbeddingGradient", default="fast"
    ),
    "fuse_kernels": PassEntry("monograph.passes.compute.fuse_kernels:FuseKernels"),
    "fuse_swiglu_epilogue": PassEntry(
        "monograph.passes.compute.fuse_swiglu_epilogue:FuseSwigluEpilogue", default="fast", needs=("merge_matmuls",)
    ),
    "fuse_expert_matmuls": PassEntry("monograph.passes.compute.fuse_expert_matmuls:FuseExpertMatmuls", default="fast"),
    "fuse_float8_casts": PassEntry(
        "monograph.passes.compute.fuse_float8_casts:FuseFloat8Casts", default="float8", needs=("quantize_matmuls",)
    ),
}
"""Name -> what is known about a pass before it is imported."""

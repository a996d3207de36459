"""The passes in the order they run: one list, written by hand. Loads without torch, so that names can be checked."""

ORDER = {
    "remove_no_ops": "monograph.passes.clean.remove_no_ops:RemoveNoOps",
    "remove_dead_code": "monograph.passes.clean.remove_dead_code:RemoveDeadCode",
    "dedupe_all_gathers": "monograph.passes.clean.dedupe_all_gathers:DedupeAllGathers",
    "elide_trivial_collectives": "monograph.passes.comm.elide_trivial_collectives:ElideTrivialCollectives",
    "merge_chunks": "monograph.passes.overlap.merge_chunks:MergeChunks",
    "choose_saved": "monograph.passes.memory.choose_saved:ChooseSaved",
    "recompute": "monograph.passes.memory.recompute:Recompute",
    "offload_activations": "monograph.passes.memory.offload_activations:OffloadActivations",
    "chunk_experts": "monograph.passes.overlap.chunk_experts:ChunkExperts",
    "narrow_gradients": "monograph.passes.memory.narrow_gradients:NarrowGradients",
    "split_communicators": "monograph.passes.comm.split_communicators:SplitCommunicators",
    "bucket_collectives": "monograph.passes.comm.bucket_collectives:BucketCollectives",
    "prefetch_all_gathers": "monograph.passes.comm.prefetch_all_gathers:PrefetchAllGathers",
    "overlap_experts": "monograph.passes.overlap.overlap_experts:OverlapExperts",
    "merge_matmuls": "monograph.passes.compute.merge_matmuls:MergeMatmuls",
    "cache_cast_weights": "monograph.passes.memory.cache_cast_weights:CacheCastWeights",
    "mark_regions": "monograph.passes.compile.mark_regions:MarkRegions",
    "compile_regions": "monograph.passes.compile.compile_regions:CompileRegions",
    "compile_whole": "monograph.passes.compile.compile_whole:CompileWhole",
    "fuse_kernels": "monograph.passes.compute.fuse_kernels:FuseKernels",
    "fuse_swiglu_epilogue": "monograph.passes.compute.fuse_swiglu_epilogue:FuseSwigluEpilogue",
}
"""Name -> module:class."""

"""The passes in the order they run: one list, written by hand. Loads without torch, so that names can be checked."""

ORDER = {
    "remove_no_ops": "monograph.passes.clean.remove_no_ops:RemoveNoOps",
    "remove_dead_code": "monograph.passes.clean.remove_dead_code:RemoveDeadCode",
    "share_gathers": "monograph.passes.clean.share_gathers:ShareGathers",
    "elide_trivial_collectives": "monograph.passes.comm.elide_trivial_collectives:ElideTrivialCollectives",
    "join_chunks": "monograph.passes.overlap.join_chunks:JoinChunks",
    "choose_saved": "monograph.passes.memory.choose_saved:ChooseSaved",
    "recompute": "monograph.passes.memory.recompute:Recompute",
    "offload_saved": "monograph.passes.memory.offload_saved:OffloadSaved",
    "chunk_experts": "monograph.passes.overlap.chunk_experts:ChunkExperts",
    "narrow_gradients": "monograph.passes.memory.narrow_gradients:NarrowGradients",
    "split_groups": "monograph.passes.comm.split_groups:SplitGroups",
    "bucket_collectives": "monograph.passes.comm.bucket_collectives:BucketCollectives",
    "prefetch_gathers": "monograph.passes.comm.prefetch_gathers:PrefetchGathers",
    "overlap_experts": "monograph.passes.overlap.overlap_experts:OverlapExperts",
    "join_products": "monograph.passes.compute.join_products:JoinProducts",
    "keep_weights": "monograph.passes.memory.keep_weights:KeepWeights",
    "mark_regions": "monograph.passes.compile.mark_regions:MarkRegions",
    "compile_regions": "monograph.passes.compile.compile_regions:CompileRegions",
    "compile_whole": "monograph.passes.compile.compile_whole:CompileWhole",
    "fuse_kernels": "monograph.passes.compute.fuse_kernels:FuseKernels",
    "fuse_products": "monograph.passes.compute.fuse_products:FuseProducts",
}
"""Name -> module:class."""

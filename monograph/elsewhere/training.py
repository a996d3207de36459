"""Settings of other trainers: optimizer, learning rate, batch, precision, memory, and the devices."""

from monograph.elsewhere.rows import AXOLOTL, HF, LAUNCHERS, MEGATRON, NANOCHAT, TITAN, TRL, missing, other, same

_DECAYS = {
    **{name: f"--lr_scheduler.decay {name}" for name in ("linear", "cosine", "constant", "sqrt")},
    "constant_with_warmup": "--lr_scheduler.decay constant",
    "cosine_with_min_lr": "--lr_scheduler.decay cosine",
    "warmup_stable_decay": "--lr_scheduler.decay linear --lr_scheduler.decay_fraction 0.2",
    "wsd": "--lr_scheduler.decay linear --lr_scheduler.decay_fraction 0.2",
}
_DECAY, _DECAY_NOTE = "--lr_scheduler.decay DECAY", "cosine, linear, sqrt or constant"
_BATCH = "--training.global_batch_size N"
_STEPS = "--training.steps N"
_EPOCHS = "N = {} x samples per epoch, which the first line of the log has, / training.global_batch_size"
_WARMUP, _WARMUP_NOTE = "--lr_scheduler.warmup_steps N", "N = {} x training.steps"
_MUON = ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")
_ADAMW, _ADAMW_NOTE = "--optimizer package.module:Class", "AdamW is built in and needs no flag"
_NO_HALF = "--training.compute_dtype bfloat16"
_BF16 = {"true": "--training.compute_dtype bfloat16", "false": "--training.compute_dtype float32"}
_DTYPES = {
    **{name: "--training.compute_dtype bfloat16" for name in ("bfloat16", "bf16", "auto")},
    **{name: "--training.compute_dtype float32" for name in ("float32", "fp32")},
}
_STATE = {
    "fp32": "--optimizer.state_dtype float32",
    "float32": "--optimizer.state_dtype float32",
    "bf16": "--optimizer.state_dtype bfloat16",
    "bfloat16": "--optimizer.state_dtype bfloat16",
}
_LORA = "no LoRA; --training.freeze PATTERN trains a part of the weights, without it all of them"
_QUANTIZED = "weights are trained in bf16 or fp32; --optimizer.state_dtype bfloat16 halves the moments"
_RECOMPUTE = {"true": "--activation_checkpoint.mode full", "false": "--activation_checkpoint.mode none"}
_BUDGET = "--activation_checkpoint.mode budget --activation_checkpoint.budget_gib N"
_SHARDED = "--parallelism.data_parallel_shard_degree -1"
_SHARDED_NOTE = "the default: weights and optimizer state are sharded over all ranks"

OPTIMIZER = (
    same("learning_rate", (HF, AXOLOTL), "optimizer.lr"),
    same("lr", (MEGATRON,), "optimizer.lr"),
    *(
        other(name, (NANOCHAT,), "--optimizer.lr N", "one rate for all parameters")
        for name in ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr")
    ),
    same("adam_beta1", (HF, MEGATRON, AXOLOTL), "optimizer.beta1"),
    same("adam_beta2", (HF, MEGATRON, AXOLOTL), "optimizer.beta2"),
    same("adam_epsilon", (HF, AXOLOTL), "optimizer.eps"),
    same("adam_eps", (MEGATRON,), "optimizer.eps"),
    same("weight_decay", (HF, MEGATRON, AXOLOTL, NANOCHAT), "optimizer.weight_decay"),
    same("max_grad_norm", (HF, AXOLOTL), "training.max_norm"),
    same("clip_grad", (MEGATRON,), "training.max_norm"),
    same("grad_clip", (NANOCHAT,), "training.max_norm"),
    other("optim", (HF,), _ADAMW, _ADAMW_NOTE),
    other("optimizer.name", (TITAN,), _ADAMW, _ADAMW_NOTE),
    other("optimizer", (MEGATRON, AXOLOTL), _ADAMW, _ADAMW_NOTE),
    other("exp_avg_dtype", (MEGATRON,), "--optimizer.state_dtype DTYPE", "float32 or bfloat16", _STATE),
    missing("label_smoothing_factor", (HF,), "a model of your own computes its loss itself"),
    missing("neftune_noise_alpha", (HF, AXOLOTL), "a model of your own can add noise to its embeddings"),
    other("lr_scheduler_type", (HF,), _DECAY, _DECAY_NOTE, _DECAYS),
    other("lr_scheduler", (AXOLOTL,), _DECAY, _DECAY_NOTE, _DECAYS),
    other("lr_decay_style", (MEGATRON,), _DECAY, _DECAY_NOTE, _DECAYS),
    other("lr_scheduler.decay_type", (TITAN,), _DECAY, _DECAY_NOTE, _DECAYS),
    same("warmup_steps", (HF, AXOLOTL, NANOCHAT), "lr_scheduler.warmup_steps"),
    same("lr_warmup_iters", (MEGATRON,), "lr_scheduler.warmup_steps"),
    other("warmup_ratio", (HF, AXOLOTL, NANOCHAT), _WARMUP, _WARMUP_NOTE),
    other("lr_warmup_fraction", (MEGATRON,), _WARMUP, _WARMUP_NOTE),
    same("lr_decay_iters", (MEGATRON,), "lr_scheduler.total_steps"),
    other("min_lr", (MEGATRON,), "--lr_scheduler.min_factor N", "N = {} / optimizer.lr"),
    same("lr_scheduler.lr_min", (TITAN,), "lr_scheduler.min_factor"),
    same("lr_scheduler.min_lr_factor", (TITAN,), "lr_scheduler.min_factor"),
    same("cosine_min_lr_ratio", (AXOLOTL,), "lr_scheduler.min_factor"),
    same("final_lr_frac", (NANOCHAT,), "lr_scheduler.min_factor"),
    same("lr_scheduler.decay_ratio", (TITAN,), "lr_scheduler.decay_fraction", "a share of the steps after warm-up"),
    same("warmdown_ratio", (NANOCHAT,), "lr_scheduler.decay_fraction", "a share of the steps after warm-up"),
    other(
        "lr_wsd_decay_iters",
        (MEGATRON,),
        "--lr_scheduler.decay linear --lr_scheduler.decay_fraction N",
        "N = {} / the steps after warm-up",
    ),
)
"""Learning rate, AdamW, clipping, schedules."""

BATCH = (
    same("max_steps", (HF, AXOLOTL), "training.steps"),
    same("train_iters", (MEGATRON,), "training.steps"),
    same("num_iterations", (NANOCHAT,), "training.steps"),
    other("num_train_epochs", (HF,), _STEPS, _EPOCHS),
    other("num_epochs", (AXOLOTL,), _STEPS, _EPOCHS),
    other("epochs", (), _STEPS, _EPOCHS),
    other("train_samples", (MEGATRON,), _STEPS, "N = {} / training.global_batch_size"),
    missing(
        "target_param_data_ratio",
        (NANOCHAT,),
        "--training.steps N, of training.global_batch_size x training.seq_len tokens",
    ),
    same("per_device_train_batch_size", (HF,), "training.local_batch_size"),
    same("micro_batch_size", (MEGATRON, AXOLOTL), "training.local_batch_size"),
    same("device_batch_size", (NANOCHAT,), "training.local_batch_size"),
    same("pipeline_parallel_microbatch_size", (TITAN,), "training.local_batch_size"),
    same("global_batch_size", (MEGATRON,), "training.global_batch_size"),
    other(
        "gradient_accumulation_steps",
        (HF, AXOLOTL),
        _BATCH,
        "N = {} x training.local_batch_size x data-parallel ranks",
    ),
    other("total_batch_size", (NANOCHAT,), _BATCH, "N = {} tokens / training.seq_len"),
    other(
        "batch_size",
        (AXOLOTL,),
        "--training.local_batch_size {}",
        "the sequences on each device at a time; those of an update: --training.global_batch_size {}",
    ),
    missing("auto_find_batch_size", (HF, AXOLOTL), "monograph plan RECIPE --gpus N shows what fits"),
    missing("rampup_batch_size", (MEGATRON,), "the batch is --training.global_batch_size from the first step"),
    same("max_length", (TRL,), "training.seq_len"),
    same("max_seq_length", (TRL,), "training.seq_len"),
    same("seq_length", (MEGATRON,), "training.seq_len"),
    same("sequence_len", (AXOLOTL,), "training.seq_len"),
    same("max_seq_len", (NANOCHAT,), "training.seq_len"),
    same("block_size", (), "training.seq_len"),
)
"""Duration, batches and lengths."""

PRECISION = (
    other("bf16", (HF, MEGATRON, AXOLOTL), _NO_HALF, values=_BF16),
    other("fp16", (HF, MEGATRON, AXOLOTL), _NO_HALF, "there is no float16 training"),
    other("torch_dtype", (TRL, AXOLOTL), "--training.compute_dtype DTYPE", "bfloat16 or float32", _DTYPES),
    same("mixed_precision_param", (TITAN,), "training.compute_dtype"),
    same("mixed_precision_reduce", (TITAN,), "parallelism.reduce_dtype"),
    other("accumulate_allreduce_grads_in_fp32", (MEGATRON,), "--parallelism.reduce_dtype float32", "the default"),
    other("fp8", (NANOCHAT, AXOLOTL), "--compile.numerics float8", values={"false": "--compile.numerics exact"}),
    other("fp8_format", (MEGATRON,), "--compile.numerics float8"),
    same("fp8_recipe", (NANOCHAT,), "passes.quantize_matmuls.recipe"),
    *(missing(name, (AXOLOTL,), _QUANTIZED) for name in ("load_in_4bit", "load_in_8bit")),
    other("gradient_checkpointing", (HF, AXOLOTL), "--activation_checkpoint.mode full", values=_RECOMPUTE),
    same("recompute_granularity", (MEGATRON,), "activation_checkpoint.mode"),
    other("recompute_activations", (MEGATRON,), "--activation_checkpoint.mode selective"),
    other(
        "memory_budget",
        (TITAN,),
        "--activation_checkpoint.mode budget --activation_checkpoint.budget_gib N",
        "GiB, not a share",
    ),
    other("activation_offloading", (TRL, AXOLOTL), "--passes.on offload_activations"),
    missing("enable_cpu_offload", (TITAN,), "no offloading of weights; activations: --passes.on offload_activations"),
    other("use_liger_kernel", (HF,), "--compile.numerics fast", "fused kernels are built in"),
    other(
        "torch_compile",
        (HF, AXOLOTL),
        "--compile.mode graph",
        "the default",
        values={"false": "--compile.mode eager"},
    ),
    other(
        "compile.enable",
        (TITAN,),
        "--compile.mode graph",
        "the default; layer compiles each block by torch.compile",
        values={"false": "--compile.mode eager"},
    ),
    other("compile", (), "--compile.mode graph", "the default", {"false": "--compile.mode eager"}),
    same("torch_compile_backend", (HF,), "compile.backend"),
    other("cuda_graph_impl", (MEGATRON,), "--compile.cuda_graph auto", values={"none": "--compile.cuda_graph off"}),
    missing("torch_empty_cache_steps", (HF,), "the whole step is one graph with planned memory"),
    *(missing(name, (TRL, AXOLOTL), _LORA) for name in ("lora_r", "lora_alpha", "lora_target_modules")),
    missing("use_peft", (TRL,), _LORA),
    missing("adapter", (AXOLOTL,), _LORA),
    other("unfrozen_parameters", (AXOLOTL,), "--training.freeze PATTERN", "it names what is not trained"),
    same("gc_freq", (TITAN,), "training.gc_interval"),
    same("manual_gc_interval", (MEGATRON,), "training.gc_interval"),
)
"""Numbers, memory and compilation."""

DEVICES = (
    same("tensor_model_parallel_size", (MEGATRON,), "parallelism.tensor_parallel_degree"),
    same("tensor_parallel_size", (AXOLOTL,), "parallelism.tensor_parallel_degree"),
    same("pipeline_model_parallel_size", (MEGATRON,), "parallelism.pipeline_parallel_degree"),
    same("num_virtual_stages_per_pipeline_rank", (MEGATRON,), "parallelism.pipeline_virtual_stages"),
    other(
        "num_layers_per_virtual_pipeline_stage",
        (MEGATRON,),
        "--parallelism.pipeline_virtual_stages N",
        "N = model.n_layers / pipeline ranks / {}",
    ),
    other(
        "pipeline_parallel_schedule",
        (TITAN,),
        "--parallelism.pipeline_schedule SCHEDULE",
        "1f1b, gpipe, interleaved_1f1b, zero_bubble or zbv",
        values={
            "1f1b": "--parallelism.pipeline_schedule 1f1b",
            "gpipe": "--parallelism.pipeline_schedule gpipe",
            "interleaved1f1b": "--parallelism.pipeline_schedule interleaved_1f1b",
            "interleavedzerobubble": "--parallelism.pipeline_schedule zero_bubble",
            "zbvzerobubble": "--parallelism.pipeline_schedule zbv",
        },
    ),
    same("pipeline_parallel_schedule_csv", (TITAN,), "parallelism.pipeline_schedule"),
    other(
        "module_fqns_per_model_part",
        (TITAN,),
        "--parallelism.pipeline_stages layers.4 layers.8",
        "the first layers of all stages but the first",
    ),
    same("context_parallel_size", (MEGATRON, AXOLOTL), "parallelism.context_parallel_degree"),
    other(
        "context_parallel_rotate_method",
        (TITAN,),
        "--parallelism.context_parallel_method METHOD",
        "all_gather or ulysses",
        values={
            "allgather": "--parallelism.context_parallel_method all_gather",
            "alltoall": "--parallelism.context_parallel_method ulysses",
        },
    ),
    same("expert_model_parallel_size", (MEGATRON,), "parallelism.expert_parallel_degree"),
    same("expert_tensor_parallel_size", (MEGATRON,), "parallelism.expert_tensor_parallel_degree"),
    other(
        "sequence_parallel",
        (MEGATRON,),
        "--parallelism.tensor_parallel_degree N",
        "it divides the sequence between the matmuls as well",
    ),
    other("use_distributed_optimizer", (MEGATRON,), _SHARDED, _SHARDED_NOTE),
    *(other(name, (HF, AXOLOTL), _SHARDED, _SHARDED_NOTE) for name in ("deepspeed", "fsdp", "fsdp_config")),
    same("dp_shard_size", (AXOLOTL,), "parallelism.data_parallel_shard_degree"),
    same("dp_replicate_size", (AXOLOTL,), "parallelism.data_parallel_replicate_degree"),
    other(
        "fsdp_reshard_after_forward",
        (TITAN,),
        "--parallelism.reshard_after_forward true",
        values={"never": "--parallelism.reshard_after_forward false"},
    ),
    missing("overlap_grad_reduce", (MEGATRON,), "the passes order and overlap collectives; see monograph passes"),
    missing("overlap_param_gather", (MEGATRON,), "the passes order and overlap collectives; see monograph passes"),
    missing("enable_async_tensor_parallel", (TITAN,), "the passes order and overlap collectives; see monograph passes"),
    other(
        "overlap_moe_expert_parallel_comm",
        (MEGATRON,),
        "--compile.expert_overlap.strategy graph",
        values={"false": "--compile.expert_overlap.strategy off"},
    ),
    same("ddp_timeout", (HF,), "parallelism.timeout_seconds"),
    same("init_timeout_seconds", (TITAN,), "parallelism.timeout_seconds"),
    other("distributed_timeout_minutes", (MEGATRON,), "--parallelism.timeout_seconds N", "N = 60 x {}"),
    other("use_cpu", (HF,), "--debug.device cpu", values={"false": "--debug.device auto"}),
    same("device_type", (NANOCHAT,), "debug.device"),
    same("replica_id", (TITAN,), "fault_tolerance.replica"),
    same("fault_tolerance.group_size", (TITAN,), "fault_tolerance.replicas"),
    same("min_replica_size", (TITAN,), "fault_tolerance.min_replicas"),
    same("nproc_per_node", (LAUNCHERS,), "ranks"),
    same("num_processes", (LAUNCHERS,), "ranks"),
    same("num_gpus", (LAUNCHERS,), "ranks"),
    same("gpus", (LAUNCHERS,), "ranks"),
    other("nnodes", (LAUNCHERS,), "monograph launch RECIPE --on torchrun --nodes {} --gpus-per-node G"),
)
"""The mesh, communication and how a run is started."""

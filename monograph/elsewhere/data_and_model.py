"""Settings of other trainers: data, tokenizer, model, logging, validation and checkpoints."""

from monograph.elsewhere.rows import AXOLOTL, HF, MEGATRON, NANOCHAT, TITAN, TRL, missing, other, same

_DOCUMENTS = "--model.mask document"
_PACKED = "texts are always packed; document: a token sees its own text only, causal: all that is before it"
_PACK = {"true": _DOCUMENTS, "false": _DOCUMENTS}
_ALL_TOKENS = "the loss is over all tokens; a source of your own sets labels (docs/guides/own_data_and_optimizer.md)"
_NOT_BEST = "checkpoints are kept by age (--checkpoint.keep_last N); validation losses are in metrics.jsonl"
_STOP = "watch the validation loss and stop the run with Ctrl-C: it saves a checkpoint"
_HUB = "monograph hf export FOLDER OUT, and upload OUT"
_RECIPE = "the recipe decides: monograph train RECIPE; see: monograph recipes"
_KERNELS, _KERNELS_NOTE = "--model.attention.kernel NAME", "auto, flash, cudnn, triton, flex or reference"
_ATTENTION = {
    "flash_attention_2": "--model.attention.kernel flash",
    "flash_attention_3": "--model.attention.kernel flash",
    "sdpa": "--model.attention.kernel auto",
    "flex_attention": "--model.attention.kernel flex",
    "eager": "--model.attention.kernel reference",
}
_BACKENDS = {
    "auto": "--model.attention.kernel auto",
    "flash": "--model.attention.kernel flash",
    "fused": "--model.attention.kernel cudnn",
    "unfused": "--model.attention.kernel reference",
}
_SINKS = {
    "wandb": "--metrics.wandb true",
    "tensorboard": "--metrics.tensorboard true",
    "all": "--metrics.wandb true --metrics.tensorboard true",
    "false": "--metrics.wandb false --metrics.tensorboard false",
}
_WANDB = "--metrics.wandb true"
_WANDB_NOTE = "the project is called monograph; WANDB_RUN_ID and WANDB_ENTITY are read"
_RESUME = {"true": "--checkpoint.load latest", "false": "--checkpoint.load ''"}
_WEIGHTS_ONLY = "--checkpoint.load PATH --checkpoint.load_model_only true"
_VALIDATE, _VALIDATE_NOTE = "--validator.interval N", "the steps between validations"
_SAMPLES = "--validator.samples N"
_SAVE, _SAVE_NOTE = "--checkpoint.interval N", "the steps between checkpoints"

DATA = (
    same("train_file", (), "dataloader.dataset"),
    same("training.dataset", (TITAN,), "dataloader.dataset"),
    same("dataset", (), "dataloader.dataset"),
    same("dataset_path", (TITAN,), "dataloader.dataset"),
    other("dataset_name", (TRL,), "--dataloader.dataset hf:{}", "a local file or folder: without hf:"),
    same("dataset_config", (TRL,), "dataloader.hf_subset"),
    same("dataset_train_split", (TRL,), "dataloader.hf_split"),
    other("datasets", (AXOLOTL,), "--dataloader.dataset PATH", "several: --dataloader.mixture NAME=WEIGHT:PATH ..."),
    other(
        "data_path",
        (MEGATRON,),
        "--dataloader.dataset PATH",
        ".bin and .idx files are not read: give text, jsonl or parquet; monograph data pack tokenizes it once",
    ),
    missing("dataset_prepared_path", (AXOLOTL,), "monograph data pack DATASET OUT tokenizes once, to train from OUT"),
    same("dataset_text_field", (TRL,), "dataloader.text_field"),
    same("validation_file", (), "dataloader.validation_datasets"),
    same("valid_data_path", (MEGATRON,), "dataloader.validation_datasets"),
    same("validation.dataset", (TITAN,), "dataloader.validation_datasets"),
    same("val_set_size", (AXOLOTL,), "dataloader.held_out_fraction", "a share of the documents, not a count"),
    other("split", (MEGATRON,), "--dataloader.held_out_fraction 0.02", "the share of the documents to validate on"),
    other("packing", (TRL,), _DOCUMENTS, _PACKED, _PACK),
    other("sample_packing", (AXOLOTL,), _DOCUMENTS, _PACKED, _PACK),
    other("padding_free", (TRL,), _DOCUMENTS, _PACKED, _PACK),
    other("reset_attention_mask", (MEGATRON,), _DOCUMENTS),
    other("reset_position_ids", (MEGATRON,), _DOCUMENTS),
    missing("pad_to_sequence_len", (AXOLOTL,), "texts are packed into sequences of training.seq_len, without padding"),
    missing("group_by_length", (HF, AXOLOTL), "texts are packed into sequences of training.seq_len, without padding"),
    same("shuffle_dataset", (TRL,), "dataloader.shuffle"),
    *(
        other(name, trainers, "--dataloader.prefetch N", "micro-batches that a thread makes ahead")
        for name, trainers in (
            ("dataloader_num_workers", (HF, AXOLOTL)),
            ("dataset_num_proc", (TRL,)),
            ("num_workers", (MEGATRON,)),
        )
    ),
    missing("completion_only_loss", (TRL,), _ALL_TOKENS),
    missing("assistant_only_loss", (TRL,), _ALL_TOKENS),
    missing("train_on_inputs", (AXOLOTL,), _ALL_TOKENS),
    missing("chat_template_path", (TRL,), "write each conversation out as text before training"),
    missing("chat_template", (AXOLOTL,), "write each conversation out as text before training"),
    same("tokenizer", (), "tokenizer.path", "the file tokenizer.json; a class: package.module:Class"),
    same("eos_token", (TRL,), "tokenizer.eos_token"),
    *(
        same(name, trainers, "tokenizer.path", "the file tokenizer.json")
        for name, trainers in (
            ("tokenizer_name", ()),
            ("tokenizer_path", (TITAN,)),
            ("tokenizer_model", (MEGATRON,)),
            ("tokenizer_config", (AXOLOTL,)),
        )
    ),
)
"""What is read, packed and tokenized."""

MODEL = (
    same("model_name_or_path", (TRL,), "model.from"),
    same("base_model", (AXOLOTL,), "model.from"),
    same("hf_assets_path", (TITAN,), "model.from"),
    same("model_id", (), "model.from"),
    same("model", (), "model.from", "a Hugging Face folder or a run; a class: package.module:Class"),
    missing("model.name", (TITAN,), _RECIPE),
    missing("flavor", (TITAN,), _RECIPE),
    missing("config_file", (TITAN,), f"{_RECIPE}, or a function of your own as package.module:function"),
    same("num_layers", (MEGATRON,), "model.n_layers"),
    same("depth", (NANOCHAT,), "model.n_layers", "the width stays: --model.dim"),
    same("hidden_size", (MEGATRON,), "model.dim"),
    same("ffn_hidden_size", (MEGATRON,), "model.feed_forward.hidden_dim"),
    same("num_attention_heads", (MEGATRON,), "model.attention.n_heads"),
    same("num_query_groups", (MEGATRON,), "model.attention.n_kv_heads"),
    same("kv_channels", (MEGATRON,), "model.attention.head_dim"),
    same("rotary_base", (MEGATRON,), "model.rope.theta"),
    same("norm_epsilon", (MEGATRON,), "model.norm_eps"),
    same("init_method_std", (MEGATRON,), "model.init_std"),
    same("hidden_dropout", (MEGATRON,), "model.dropout"),
    other(
        "attention_dropout", (MEGATRON,), "--model.dropout {}", "dropout of the residual branches; attention has none"
    ),
    same("qk_layernorm", (MEGATRON,), "model.attention.qk_norm"),
    other("untie_embeddings_and_output_weights", (MEGATRON,), "--model.tied_embeddings false"),
    same("num_experts", (MEGATRON,), "model.moe.n_experts"),
    same("moe_router_topk", (MEGATRON,), "model.moe.router.top_k"),
    same("moe_ffn_hidden_size", (MEGATRON,), "model.moe.hidden_dim"),
    same("moe_aux_loss_coeff", (MEGATRON,), "model.moe.balance.coefficient"),
    same("moe_z_loss_coeff", (MEGATRON,), "model.moe.balance.z_coefficient"),
    same("moe_force_load_balance", (TITAN,), "model.moe.router.force_balance"),
    same("moe_router_force_load_balancing", (MEGATRON,), "model.moe.router.force_balance"),
    other("attn_implementation", (TRL, AXOLOTL), _KERNELS, _KERNELS_NOTE, _ATTENTION),
    other("attention_backend", (MEGATRON,), _KERNELS, _KERNELS_NOTE, _BACKENDS),
    other(
        "flash_attention",
        (AXOLOTL,),
        "--model.attention.kernel flash",
        "auto, the default, chooses by itself",
    ),
    other(
        "use_flash_attn",
        (MEGATRON,),
        "--model.attention.kernel flash",
        "auto, the default, chooses by itself",
    ),
)
"""Which model, and its sizes."""

RUN = (
    same("output_dir", (HF, AXOLOTL), "job.dump_folder"),
    same("save", (MEGATRON,), "job.dump_folder"),
    same("logging_dir", (), "job.dump_folder"),
    same("model_tag", (NANOCHAT,), "job.dump_folder"),
    missing("overwrite_output_dir", (), "a new run moves the old folder to FOLDER.1; nothing is overwritten"),
    same("run_name", (HF,), "job.description"),
    same("run", (NANOCHAT,), "job.description", "W&B: --metrics.wandb true"),
    same("logging_steps", (HF, AXOLOTL), "metrics.log_interval"),
    same("log_interval", (MEGATRON,), "metrics.log_interval"),
    same("log_freq", (TITAN,), "metrics.log_interval"),
    same("log_level", (HF,), "debug.log_level"),
    other("disable_tqdm", (HF,), "--metrics.progress lines", values={"false": "--metrics.progress bar"}),
    other("report_to", (HF,), "--metrics.wandb true", "or --metrics.tensorboard true", _SINKS),
    same("enable_tensorboard", (TITAN,), "metrics.tensorboard"),
    same("enable_wandb", (TITAN,), "metrics.wandb"),
    other("tensorboard_dir", (MEGATRON,), "--metrics.tensorboard true", "in the folder of the run"),
    other("wandb_project", (MEGATRON, AXOLOTL), _WANDB, _WANDB_NOTE),
    other("enable_profiling", (TITAN,), "--profiler.start N", "the first step to record"),
    same("profile_freq", (TITAN,), "profiler.every"),
    same("profile_step_start", (MEGATRON,), "profiler.start"),
    same("seed", (HF, MEGATRON, AXOLOTL), "debug.seed"),
    same("data_seed", (HF,), "debug.seed", "it also decides the first weights"),
    same("full_determinism", (HF,), "debug.deterministic"),
    same("deterministic_mode", (MEGATRON,), "debug.deterministic"),
    same("eval_steps", (HF, AXOLOTL), "validator.interval"),
    same("eval_interval", (MEGATRON,), "validator.interval"),
    same("eval_every", (NANOCHAT,), "validator.interval"),
    same("validation.freq", (TITAN,), "validator.interval"),
    other("eval_strategy", (HF,), _VALIDATE, _VALIDATE_NOTE, {"false": "--validator.interval 0"}),
    other("evals_per_epoch", (AXOLOTL,), _VALIDATE, _VALIDATE_NOTE),
    other("per_device_eval_batch_size", (HF,), _SAMPLES, "the sequences of a set; batches are those of training"),
    other("eval_iters", (MEGATRON,), _SAMPLES, "N = {} x training.global_batch_size"),
    other("validation.steps", (TITAN,), _SAMPLES, "N = {} x training.global_batch_size"),
    other("eval_tokens", (NANOCHAT,), _SAMPLES, "N = {} / training.seq_len"),
    missing("core_metric_every", (NANOCHAT,), "monograph evaluate FOLDER --tasks NAME after training"),
    missing("sample_every", (NANOCHAT,), 'monograph generate FOLDER --prompt "..." after training'),
    missing("load_best_model_at_end", (HF, AXOLOTL), _NOT_BEST),
    missing("metric_for_best_model", (HF,), _NOT_BEST),
    missing("early_stopping_patience", (AXOLOTL,), _STOP),
    same("save_steps", (HF, AXOLOTL), "checkpoint.interval"),
    same("save_interval", (MEGATRON,), "checkpoint.interval"),
    same("save_every", (NANOCHAT,), "checkpoint.interval"),
    other(
        "save_strategy",
        (HF,),
        _SAVE,
        _SAVE_NOTE,
        {"false": "--checkpoint.enabled false"},
    ),
    other("saves_per_epoch", (AXOLOTL,), _SAVE, _SAVE_NOTE),
    same("save_total_limit", (HF, AXOLOTL), "checkpoint.keep_last"),
    same("keep_latest_k", (TITAN,), "checkpoint.keep_last"),
    same("checkpoint.enable", (TITAN,), "checkpoint.enabled"),
    same("enable_checkpoint", (TITAN,), "checkpoint.enabled"),
    other(
        "async_mode",
        (TITAN,),
        "--checkpoint.async_save true",
        values={"disabled": "--checkpoint.async_save false"},
    ),
    other("resume_from_checkpoint", (HF, AXOLOTL), "--checkpoint.load {}", values=_RESUME),
    same("resume_from_step", (NANOCHAT,), "checkpoint.load"),
    same("load_step", (TITAN,), "checkpoint.load"),
    same("load", (MEGATRON,), "checkpoint.load", "latest, auto, a step, or a path"),
    same("checkpoint", (), "checkpoint.load", "latest, auto, a step, or a path"),
    other("finetune", (MEGATRON,), _WEIGHTS_ONLY),
    other("no_load_optim", (MEGATRON,), _WEIGHTS_ONLY),
    other("exclude_from_loading", (TITAN,), _WEIGHTS_ONLY),
    missing("save_only_model", (HF, AXOLOTL), _HUB),
    missing("last_save_in_hf", (TITAN,), _HUB),
    missing("push_to_hub", (HF,), _HUB),
    missing("hub_model_id", (HF, AXOLOTL), _HUB),
)
"""Folders, logs, validation and checkpoints."""

"""Names that settings have in other trainers (Hugging Face, torchtitan, Megatron), for errors about unknown flags.

They are not accepted: whoever writes one is told ours. What merely looks like one of our names is left to the search
for similar names.
"""

from collections.abc import Collection, Sequence

SAME = {
    "learning_rate": "optimizer.lr",
    "adam_beta1": "optimizer.beta1",
    "adam_beta2": "optimizer.beta2",
    "adam_epsilon": "optimizer.eps",
    "adam_eps": "optimizer.eps",
    "max_steps": "training.steps",
    "train_iters": "training.steps",
    "max_grad_norm": "training.max_norm",
    "clip_grad": "training.max_norm",
    "per_device_train_batch_size": "training.local_batch_size",
    "micro_batch_size": "training.local_batch_size",
    "max_seq_length": "training.seq_len",
    "max_length": "training.seq_len",
    "seq_length": "training.seq_len",
    "block_size": "training.seq_len",
    "logging_steps": "metrics.log_interval",
    "log_freq": "metrics.log_interval",
    "save_steps": "checkpoint.interval",
    "save_interval": "checkpoint.interval",
    "save_total_limit": "checkpoint.keep_last",
    "keep_latest_k": "checkpoint.keep_last",
    "output_dir": "job.dump_folder",
    "logging_dir": "job.dump_folder",
    "run_name": "job.description",
    "model_name_or_path": "model.from",
    "model_id": "model.from",
    "tokenizer_name": "tokenizer.path",
    "train_file": "dataloader.dataset",
    "validation_file": "dataloader.validation_datasets",
    "full_determinism": "debug.deterministic",
    "tensor_model_parallel_size": "parallelism.tensor_parallel_degree",
    "pipeline_model_parallel_size": "parallelism.pipeline_parallel_degree",
    "context_parallel_size": "parallelism.context_parallel_degree",
    "expert_model_parallel_size": "parallelism.expert_parallel_degree",
}
"""Their name -> our field, which takes the same value."""

OTHER = {
    "resume_from_checkpoint": ("checkpoint.load", "--checkpoint.load latest, a step, or auto"),
    "eval_steps": ("validator.interval", "--validator.interval N: steps between validations"),
    "per_device_eval_batch_size": ("validator.samples", "--validator.samples N; batches are those of training"),
    "data_seed": ("debug.seed", "--debug.seed N, which also decides the first weights"),
    "gradient_accumulation_steps": (
        "training.global_batch_size",
        "--training.global_batch_size N: the sequences of an update, over all ranks and micro-batches",
    ),
    "batch_size": (
        "training.local_batch_size",
        "--training.local_batch_size N on each device, --training.global_batch_size N in an update",
    ),
    "dataset_name": ("dataloader.dataset", "--dataloader.dataset hf:NAME for one of the hub, else a file or a folder"),
    "num_train_epochs": ("training.steps", "--training.steps N: updates are counted; the log says what an epoch is"),
    "epochs": ("training.steps", "--training.steps N: updates are counted; the log says what an epoch is"),
    "warmup_ratio": ("lr_scheduler.warmup_steps", "--lr_scheduler.warmup_steps N: updates, not a share of them"),
    "lr_scheduler_type": ("lr_scheduler.decay", "--lr_scheduler.decay cosine or linear"),
    "optim": ("optimizer", "--optimizer package.module:Class, or AdamW, which is built in"),
    "bf16": ("training.compute_dtype", "--training.compute_dtype bfloat16, which is the default"),
    "fp16": ("training.compute_dtype", "--training.compute_dtype bfloat16: float16 is not offered"),
    "torch_dtype": (
        "training.compute_dtype",
        "--training.compute_dtype for the step, --training.dtype for what is stored",
    ),
    "gradient_checkpointing": ("activation_checkpoint.mode", "--activation_checkpoint.mode full"),
    "deepspeed": (
        "parallelism.data_parallel_shard_degree",
        "weights and optimizer state are sharded over all ranks unless --parallelism.data_parallel_replicate_degree N",
    ),
    "report_to": ("metrics.wandb", "--metrics.wandb true, --metrics.tensorboard true"),
    "eval_strategy": ("validator.interval", "--validator.interval N: steps between validations, 0 for none"),
    "save_strategy": ("checkpoint.interval", "--checkpoint.interval N, --checkpoint.save_last true"),
    "load_best_model_at_end": (
        "checkpoint.keep_last",
        "--checkpoint.keep_last N keeps the newest; no best one is chosen",
    ),
    "push_to_hub": ("job.dump_folder", "monograph hf export FOLDER OUT, and upload OUT"),
    "overwrite_output_dir": ("job.dump_folder", "--job.dump_folder with another folder: a run is not overwritten"),
    "packing": ("model.mask", "texts are packed always: --model.mask document keeps them apart, causal does not"),
    "group_by_length": ("model.mask", "not needed: texts are packed into sequences of training.seq_len"),
    "dataloader_num_workers": ("dataloader.prefetch", "--dataloader.prefetch N batches are read ahead"),
    "attn_implementation": ("model.attention.kernel", "--model.attention.kernel auto, flash, cudnn, triton or flex"),
    "use_lora": ("training.freeze", "--training.freeze PATTERN trains a part of the weights; there is no LoRA"),
    "lora_r": ("training.freeze", "--training.freeze PATTERN trains a part of the weights; there is no LoRA"),
    "label_smoothing_factor": ("model.loss", "it is not offered: a model of your own computes its loss itself"),
}
"""Their name -> a field or section of ours that does it in another way, and how."""


def explain_name(path: str, words: Sequence[str], known: Collection[str]) -> str:
    """What to write for a setting of another trainer; empty for other names, and where none of `known` does it."""
    name = path.rpartition(".")[2]
    if name in SAME and SAME[name] in known:
        return " ".join((f"--{SAME[name]}", *words))
    field, text = OTHER.get(name, ("", ""))
    return text if any(each == field or each.startswith(f"{field}.") for each in known) else ""

"""For every field of every recipe: another value, where its effect is seen, and the other settings that it takes.

Fields whose effect needs a GPU, a broken disk or an artifact name the test that shows it instead.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.own_pass import ShareEqualValues
from monograph.train.data.source_configs import FileSourceConfig
from tests.train.field_effects import (
    see_batches,
    see_determinism,
    see_device,
    see_graph,
    see_pipeline,
    see_run,
    see_step,
    see_stream,
    see_trainer,
    see_update,
)

METADATA = {"job.description": "free text for people, kept with the run"}
"""Fields that are for people, and why."""
SHOWN_BY = {
    "training.gc_interval": "train/test_garbage.py::"
    "test_a_run_collects_at_its_interval_only_and_leaves_the_collector_on",
    "parallelism.timeout_seconds": "parallel/test_groups.py::test_ranks_wait_as_long_as_for_files_until_the_first_step",
    "model.attention.mask_mod": "models/test_flex.py::"
    "test_a_mask_function_replaces_what_layers_see_and_documents_stay_apart",
    "model.attention.score_mod": "models/test_flex.py::test_a_score_function_changes_what_is_predicted",
    "passes.quantize_matmuls.recipe": "passes/test_quantize_matmuls.py::"
    "test_high_precision_weight_gradients_stay_in_bfloat16",
    "passes.quantize_matmuls.only": "passes/test_quantize_matmuls.py::"
    "test_paths_choose_and_graph_lines_say_why_a_matmul_stayed",
    "passes.quantize_matmuls.skip": "passes/test_quantize_matmuls.py::"
    "test_paths_choose_and_graph_lines_say_why_a_matmul_stayed",
    "passes.quantize_matmuls.by_cost": "passes/test_quantize_matmuls.py::"
    "test_small_matmuls_stay_in_bfloat16_on_a_machine_where_casts_take_longer",
    "compile.cuda_graph": "execute/test_cudagraph.py::"
    "test_asking_for_a_recording_that_is_impossible_is_an_error_with_the_reasons",
    "compile.tune_kernels": "execute/test_tuned_kernels.py::test_on_a_cpu_a_run_says_that_there_is_nothing_to_tune",
    "compile.cache": "execute/test_step_cache.py::test_a_run_with_the_cache_off_neither_reads_nor_keeps_a_step",
    "compile.artifact": "execute/test_artifact_command.py::"
    "test_train_refuses_an_artifact_of_another_run_within_two_seconds_and_without_torch",
    "compile.artifact_cache": "execute/test_node_copy.py::"
    "test_one_rank_of_a_node_reads_the_shared_folder_and_the_others_read_its_copy",
    "compile.artifact_on_mismatch": "execute/test_artifact.py::"
    "test_an_artifact_for_another_length_is_refused_by_name_or_left_aside_as_asked",
    "compile.artifact_key_file": "execute/test_artifact_keys.py::test_show_and_check_say_what_is_known_of_a_signature",
    "compile.artifact_trust_shared_folder": "execute/test_artifact_sharing.py::"
    "test_code_that_other_users_could_have_written_is_refused_by_path_mode_and_remedy",
    "dataloader.verify_shards": "train/data/test_shards.py::test_comparing_sizes_does_not_read_the_tokens",
    "tokenizer.path": "train/data/test_tokenizer.py::test_a_folder_with_a_tokenizer_is_enough",
    "tokenizer.bos_token": "train/data/test_tokenizer.py::test_the_user_decides_before_tokenizer_config_json",
    "tokenizer.eos_token": "train/data/test_tokenizer.py::test_the_user_decides_before_tokenizer_config_json",
    "tokenizer.allow_special": "train/data/test_special_tokens.py::"
    "test_allowed_special_tokens_are_read_from_texts_as_by_transformers",
    "checkpoint.async_save": "train/checkpoint/test_background.py::"
    "test_an_async_save_keeps_the_values_of_its_own_step_while_training_changes_them",
    "checkpoint.timeout_seconds": "parallel/test_groups.py::test_ranks_wait_as_long_as_for_files_until_the_first_step",
    "checkpoint.slow_write_seconds": "train/checkpoint/test_slow_writers.py::"
    "test_a_rank_with_a_slow_disk_is_named_in_log_and_records_while_training_goes_on",
    "checkpoint.on_error": "train/checkpoint/test_background.py::"
    "test_a_failed_save_stops_the_run_when_that_was_asked_for",
    "checkpoint.initial_load_path": "test_model_from.py::test_the_first_step_computes_with_the_weights_of_the_folder",
    "dataloader.mixture": "train/data/test_mixture.py::test_the_weights_hold_over_any_ten_thousand_samples",
    "dataloader.source_loss_interval": "train/test_mixture_run.py::"
    "test_the_loss_of_each_source_is_that_of_its_samples_in_the_update",
    "checkpoint.allow_model_changes": "train/test_continued_settings.py::"
    "test_weights_of_another_model_are_taken_when_that_is_allowed",
    "lr_scheduler.on_extend": "train/test_lr_plan.py::test_a_run_that_is_extended_does_what_was_decided",
    "checkpoint.load_model_only": "train/test_resume.py::"
    "test_weights_alone_start_a_new_run_and_the_earlier_numbers_stay",
    "metrics.rank_times_interval": "train/test_slow_ranks.py::"
    "test_a_slow_rank_is_named_with_its_own_time_and_the_bits_stay",
    "metrics.slow_rank_limit": "train/test_slow_ranks.py::"
    "test_slow_is_relative_to_the_median_and_of_two_ranks_to_the_faster",
    "debug.share_gpus": "parallel/test_rank_devices.py::test_ranks_share_a_gpu_only_where_that_was_asked_for",
    "debug.replay_every": "train/test_replay_check.py::test_a_planted_bit_flip_is_found_and_the_rank_is_named",
    "fault_tolerance.replicas": "train/test_lost_replicas.py::"
    "test_a_killed_replica_comes_back_while_the_others_train_on",
    "fault_tolerance.replica": "train/test_replicas.py::test_what_replicas_cannot_do_is_refused_in_words",
    "fault_tolerance.min_replicas": "train/test_replicas.py::test_what_replicas_cannot_do_is_refused_in_words",
    "fault_tolerance.lighthouse": "train/test_lost_replicas.py::"
    "test_a_killed_replica_comes_back_while_the_others_train_on",
    "fault_tolerance.timeout_seconds": "train/test_lost_replicas.py::"
    "test_a_replica_that_hangs_is_left_behind_and_comes_back",
    "fault_tolerance.quorum_seconds": "train/test_lost_replicas.py::"
    "test_replicas_that_are_too_few_end_in_words_and_continue_together",
    "metrics.tensorboard": "train/test_metrics.py::"
    "test_tensorboard_shows_the_numbers_and_hides_steps_that_were_done_again",
    "metrics.page": "watch/test_training_page.py::test_a_run_serves_its_page_and_leaves_it_in_its_folder",
    "metrics.wandb": "train/test_metrics.py::"
    "test_weights_and_biases_gets_the_config_and_every_finite_number_under_a_path",
}
"""Field -> the test that shows its effect, where it takes more than a configuration."""


@dataclass(frozen=True)
class Flip:
    """Another value of a field, and where that shows."""

    path: str
    value: Any
    see: Any = see_update
    given: dict[str, Any] = field(default_factory=dict)
    """What else has to be set for the field to matter."""
    model: str = "deepseek_v3"
    is_refused: bool = False
    """Whether the value is refused, by the field's name."""
    is_long: bool = False


GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
SHARDED = {**GRAPH, "parallelism.data_parallel_shard_degree": 2}
EXPERTS = {**GRAPH, "parallelism.expert_parallel_degree": 2, "parallelism.data_parallel_shard_degree": 2}
CHUNKED = {**EXPERTS, "training.local_batch_size": 4, "compile.expert_overlap.strategy": "trace"}
STRETCHED = {"model.rope.scaling": "llama3", "model.rope.factor": 4.0, "model.rope.original_max_seq_len": 1024}
YARN = {"model.attention.qk_rope_head_dim": 32, "model.rope.original_max_seq_len": 1024}
NARROW = {"training.compute_dtype": "bfloat16"}
MERGED = {**GRAPH, "passes.on": ("merge_matmuls",)}
PASSES, OVERLAP, MOE = "passes", "compile.expert_overlap", "model.moe"


def model_flips() -> Iterator[Flip]:
    same = {
        "model.vocab_size": 300,
        "model.dim": 96,
        "model.n_layers": 4,
        "model.norm_eps": 1e-2,
        "model.tied_embeddings": True,
        "model.mask": "document",
        "model.dropout": 0.3,
        "training.freeze": ("layers.0.*",),
        "model.init_std": 0.05,
        "model.rope.theta": 100.0,
        "model.rope.layout": "half",
        "model.rope.scaling": "llama3",
        "model.rope.factor": 8.0,
        "model.rope.mscale": 0.3,
        "model.rope.mscale_all_dim": 0.3,
        "model.attention.n_heads": 8,
        "model.attention.q_lora_rank": 32,
        "model.attention.kv_lora_rank": 24,
        "model.attention.qk_nope_head_dim": 24,
        "model.attention.qk_rope_head_dim": 16,
        "model.attention.v_head_dim": 24,
        "model.attention.latent_norm_eps": 1e-2,
        "model.feed_forward.hidden_dim": 64,
        "model.n_dense_layers": 2,
        f"{MOE}.n_experts": 16,
        f"{MOE}.hidden_dim": 24,
        f"{MOE}.n_shared_experts": 1,
        f"{MOE}.router.top_k": 2,
        f"{MOE}.router.score": "softmax",
        f"{MOE}.router.n_groups": 2,
        f"{MOE}.router.top_groups": 3,
        f"{MOE}.router.group_score": "max",
        f"{MOE}.router.norm": False,
        f"{MOE}.router.scale": 3.0,
        f"{MOE}.router.expert_bias": False,
        f"{MOE}.router.bias_update_rate": 0.5,
        f"{MOE}.router.force_balance": True,
        f"{MOE}.balance.coefficient": 0.5,
        f"{MOE}.balance.times_top_k": True,
        f"{MOE}.balance.group_coefficient": 0.5,
        f"{MOE}.balance.group_traffic_coefficient": 0.5,
        f"{MOE}.balance.z_coefficient": 0.5,
    }
    yield from (Flip(path, value) for path, value in same.items())
    heads = {"model.attention.n_kv_heads": 4, "model.attention.head_dim": 32, "model.attention.qk_norm": True}
    yield from (Flip(path, value, model="llama3") for path, value in heads.items())
    for path, value in {"model.rope.low_freq_factor": 2.0, "model.rope.high_freq_factor": 16.0}.items():
        yield Flip(path, value, given=STRETCHED, model="llama3")
    yarn = {"original_max_seq_len": 256, "beta_fast": 2.0, "beta_slow": 0.1}
    yield from (Flip(f"model.rope.{name}", value, given=YARN) for name, value in yarn.items())
    yield Flip(f"{MOE}.balance.scope", "global", given={"training.local_batch_size": 2})
    yield Flip("model.rope.max_seq_len", 8, is_refused=True)
    yield Flip("model.kernels", "fused", see_graph, GRAPH, "llama3")
    yield Flip("model.loss.chunk_tokens", 8, see_graph, GRAPH, "llama3")
    yield Flip("model.attention.kernel", "reference", see_graph, GRAPH, "llama3")
    yield Flip("model.max_documents", 24, see_graph, {**GRAPH, "model.mask": "document"}, "llama3")
    yield Flip(f"{MOE}.experts.backend", "loop", see_graph, GRAPH | NARROW, is_long=True)


def family_flips() -> Iterator[Flip]:
    own = {"window": 9, "layer_kinds": ("full", "window"), "moe.experts.alpha": 1.0, "moe.experts.limit": 0.2}
    yield from (Flip(f"model.{name}", value, model="gpt_oss") for name, value in own.items())
    own = {"chunk": 4, "no_rope_interval": 3, "no_rope_layers": (0,), "moe_interval": 1, "moe_layers": (0,)}
    own |= {"attention.temperature_tuning": False, "attention.floor_scale": 3, "attention.attn_scale": 1.0}
    yield from (Flip(f"model.{name}", value, model="llama4") for name, value in own.items())
    yield Flip("model.window_theta", 30.0, model="gemma3")
    own = {"logit_cap": 0.5, "attention.score_cap": 0.5, "attention.score_dim": 5.0}
    yield from (Flip(f"model.{name}", value, model="gemma2") for name, value in own.items())
    yield Flip("model.rope.truncate", True, given={"model.rope.original_max_seq_len": 1024}, model="gpt_oss")
    yield Flip(f"{MOE}.balance.mean_of_layers", False, model="gpt_oss")


def step_flips() -> Iterator[Flip]:
    llama = {"model": "llama3"}
    yield Flip("training.seq_len", 24, **llama)
    yield Flip("training.local_batch_size", 2, **llama)
    yield Flip("training.max_norm", 0.01, **llama)
    yield Flip("training.dtype", "bfloat16", given=NARROW, **llama)
    yield Flip("training.compute_dtype", "bfloat16", **llama)
    yield Flip("debug.seed", 7, **llama)
    for name, value in {"lr": 0.1, "beta1": 0.5, "beta2": 0.5, "eps": 0.1, "weight_decay": 0.9}.items():
        yield Flip(f"optimizer.{name}", value, **llama)
    yield Flip("optimizer.implementation", "for_loop", see_trainer, **llama)
    yield Flip("optimizer.state_dtype", "bfloat16", **llama)
    both = NARROW | {"training.dtype": "bfloat16"}
    yield Flip("optimizer.store_param_remainders", True, given=both, **llama)
    for name, value in {
        "warmup_steps": 0,
        "decay": "linear",
        "decay_fraction": 0.5,
        "min_factor": 0.5,
        "total_steps": 6,
    }.items():
        yield Flip(f"lr_scheduler.{name}", value, given={"training.steps": 12}, **llama)
    yield Flip("compile.mode", "graph", see_step, **llama)
    layer = {"compile.mode": "layer", "compile.backend": "aot_eager"}
    yield Flip("compile.backend", "eager", see_step, layer, is_long=True, **llama)
    yield Flip("compile.components", ("model", "loss"), see_step, layer, is_long=True, **llama)
    yield Flip("parallelism.fsdp", "fsdp2", see_step, {"parallelism.fsdp": "graph"}, **llama)
    yield Flip("parallelism.pipeline_parallel_degree", 2, see_pipeline, GRAPH, **llama)
    piped = {**GRAPH, "parallelism.pipeline_parallel_degree": 2, "training.global_batch_size": 4}
    yield Flip("parallelism.pipeline_schedule", "gpipe", see_pipeline, piped, **llama)
    yield Flip("parallelism.pipeline_stages", ("head",), see_pipeline, piped, **llama)
    given = {**piped, "parallelism.pipeline_schedule": "interleaved_1f1b"}
    yield Flip("parallelism.pipeline_virtual_stages", 1, see_pipeline, given, **llama)
    yield Flip("debug.device", "cuda", see_device, **llama)


def graph_flips() -> Iterator[Flip]:
    llama: dict[str, Any] = {"see": see_graph, "model": "llama3"}
    moe: dict[str, Any] = {"see": see_graph, "model": "qwen3_moe", "is_long": True}
    for axis in ("data_parallel_replicate", "data_parallel_shard", "context_parallel", "tensor_parallel"):
        yield Flip(f"parallelism.{axis}_degree", 2, given=GRAPH, is_long=True, **llama)
    shared = {**GRAPH, "parallelism.context_parallel_degree": 2}
    yield Flip("parallelism.context_parallel_method", "ulysses", given=shared, is_long=True, **llama)
    latent: dict[str, Any] = {"see": see_graph, "model": "deepseek_v3", "is_long": True}
    kept = {**shared, "parallelism.context_parallel_gather": "keys_values"}
    yield Flip("parallelism.context_parallel_gather", "latent", given=kept, **latent)
    yield Flip("parallelism.expert_parallel_degree", 2, given=SHARDED, **moe)
    yield Flip(
        "parallelism.expert_tensor_parallel_degree", 2, given={**GRAPH, "parallelism.tensor_parallel_degree": 2}, **moe
    )
    yield Flip("parallelism.reshard_after_forward", False, given=SHARDED, is_long=True, **llama)
    yield Flip("parallelism.reduce_dtype", "bfloat16", given=SHARDED, is_long=True, **llama)
    yield Flip("compile.numerics", "fast", given={**GRAPH, **NARROW}, **llama)
    yield Flip(f"{OVERLAP}.strategy", "trace", given={**EXPERTS, "training.local_batch_size": 4}, **moe)
    yield Flip(f"{OVERLAP}.chunk_dim", "seq", given={**CHUNKED, f"{OVERLAP}.modules": "layers.*.moe"}, **moe)
    yield Flip(f"{OVERLAP}.modules", "layers.*.moe", given=CHUNKED, **moe)
    yield Flip(f"{OVERLAP}.num_chunks", 4, given=CHUNKED, **moe)
    yield Flip(f"{OVERLAP}.grad_sum", "after_reduce", given=CHUNKED, **moe)
    yield Flip("machine", "h100", given=CHUNKED, **moe)
    yield Flip(f"{PASSES}.overlap_experts.max_extra_bytes", 0, given=CHUNKED, **moe)
    yield Flip(f"{PASSES}.on", ("merge_matmuls",), given=GRAPH, **llama)
    yield Flip(f"{PASSES}.off", ("remove_no_ops",), given=GRAPH, **llama)
    yield Flip(f"{PASSES}.extra", (ShareEqualValues,), given=GRAPH, **llama)
    yield Flip("activation_checkpoint.mode", "full", given=GRAPH, **llama)
    full = {**GRAPH, "activation_checkpoint.mode": "full"}
    yield Flip("activation_checkpoint.save", ("layers.*.feed_forward.w1::mm",), given=full, is_long=True, **llama)
    budget = {**GRAPH, "activation_checkpoint.mode": "budget", "activation_checkpoint.budget_gib": 1.0}
    yield Flip("activation_checkpoint.budget_gib", 1e-5, given=budget, is_long=True, **llama)
    offload = {**GRAPH, f"{PASSES}.offload_activations.budget_gib": 1.0, f"{PASSES}.offload_activations.min_bytes": 64}
    for name, value in {"budget_gib": 1e-5, "prefetch_blocks": 2, "min_bytes": 1 << 13}.items():
        given = {**offload, "model.n_layers": 4}
        yield Flip(f"{PASSES}.offload_activations.{name}", value, given=given, is_long=True, **llama)
    yield Flip(f"{PASSES}.bucket_collectives.max_bytes", 1, given=SHARDED, is_long=True, **llama)
    yield Flip(f"{PASSES}.prefetch_all_gathers.ahead", 2, given={**SHARDED, "model.n_layers": 4}, is_long=True, **llama)
    yield Flip(f"{PASSES}.merge_matmuls.max_columns", 1, given=MERGED, is_long=True, **llama)
    yield Flip(f"{PASSES}.mark_regions.regions", ("blocks",), given=GRAPH, is_long=True, **llama)


def data_flips(folder: Path) -> Iterator[Flip]:
    (folder / "texts.txt").write_text("one two three four five six seven eight nine ten " * 40)
    texts = [{"text": f"some text of row {number}", "other": f"another text {number}"} for number in range(200)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    rows, text = str(folder / "rows.jsonl"), str(folder / "texts.txt")
    llama: dict[str, Any] = {"see": see_batches, "model": "llama3"}
    yield Flip("dataloader.dataset", rows, **llama)
    yield Flip("dataloader.source", FileSourceConfig(path=rows), **llama)
    yield Flip("dataloader.validation_datasets", (rows,), given={"validator.interval": 2}, **llama)
    yield Flip("dataloader.held_out_fraction", 0.5, **llama)
    many = {"dataloader.dataset": rows, "dataloader.held_out_fraction": 0.3}
    yield Flip("dataloader.text_field", "other", given=many, **llama)
    whole = {"dataloader.dataset": text, "dataloader.validation_datasets": (rows,), "validator.interval": 2}
    yield Flip("dataloader.document_separator", "five", given=whole, **llama)
    yield Flip("dataloader.shuffle", False, **llama)
    yield Flip("dataloader.prefetch", 2, **llama)
    yield Flip("tokenizer.add_bos", True, **llama)
    stream: dict[str, Any] = {"see": see_stream, "given": {"dataloader.dataset": "hf:name"}, "model": "llama3"}
    hub = {"hf_subset": "part", "hf_split": "other", "hf_revision": "v1", "stream_buffer": 2, "stream_retries": 1}
    hub["stream_lanes"] = 2
    yield from (Flip(f"dataloader.{name}", value, **stream) for name, value in hub.items())


def run_flips() -> Iterator[Flip]:
    llama: dict[str, Any] = {"see": see_run, "model": "llama3"}
    validated = {"validator.interval": 2, "validator.samples": 1}
    lines = {"metrics.progress": "lines", "metrics.log_interval": 1}
    yield Flip("job.dump_folder", "elsewhere", is_long=True, **llama)
    yield Flip("training.steps", 2, **llama)
    yield Flip("training.global_batch_size", 2, is_long=True, **llama)
    yield Flip("checkpoint.enabled", False, **llama)
    yield Flip("checkpoint.folder", "kept", is_long=True, **llama)
    yield Flip("checkpoint.interval", 1, is_long=True, **llama)
    yield Flip("checkpoint.save_last", False, is_long=True, **llama)
    yield Flip("checkpoint.keep_last", 1, given={"checkpoint.interval": 1}, is_long=True, **llama)
    yield Flip("checkpoint.load", "latest", is_long=True, **llama)
    yield Flip("validator.interval", 4, given=validated, is_long=True, **llama)
    yield Flip("validator.samples", 2, given=validated, is_long=True, **llama)
    yield Flip("metrics.progress", "lines", is_long=True, **llama)
    yield Flip("metrics.log_interval", 3, given=lines, is_long=True, **llama)
    yield Flip("metrics.peak_flops", 1e12, see_trainer, model="llama3")
    yield Flip("metrics.expert_load_limit", 1.2, see_trainer, is_long=True)
    yield Flip("metrics.expert_load_patience", 7, see_trainer, is_long=True)
    traced = {"profiler.start": 1, "profiler.steps": 1}
    yield Flip("profiler.start", 1, is_long=True, **llama)
    yield Flip("profiler.steps", 2, given=traced, is_long=True, **llama)
    yield Flip("profiler.every", 2, given=traced, is_long=True, **llama)
    yield Flip("debug.log_level", "debug", **llama)
    yield Flip("debug.deterministic", True, see_determinism, model="llama3")


def all_flips(folder: Path) -> list[Flip]:
    """The whole table; `folder` gets the files that some of them read."""
    return [*model_flips(), *family_flips(), *step_flips(), *graph_flips(), *data_flips(folder), *run_flips()]

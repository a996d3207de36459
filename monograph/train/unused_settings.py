"""Settings that another setting leaves without effect: whoever writes one is told, instead of waiting for its effect.

One table. A row names fields, and the setting that decides whether anything reads them. A field counts as written when
it differs from its default. Loads without torch.
"""

import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from monograph.config.configurable import BaseConfig
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.config.origins import find_defaults
from monograph.config.text import format_words
from monograph.errors import ConfigError
from monograph.train.data.config import BUILTIN, HUB_PREFIX, LINES_ENDINGS, PARQUET_ENDING, TEXT_ENDINGS
from monograph.train.data.named import parse_mixture, parse_validation_sets


@dataclass(frozen=True)
class EffectRule:
    """Fields that `when` may leave without effect."""

    fields: str
    """Dotted paths, separated by spaces; `*` stands for any name, and at the end for everything below."""
    when: Callable[[Any], str]
    """The deciding setting as "path is value" while it leaves the fields unused, else an empty string."""
    do: str | Callable[[Any], str]
    """The flag that gives them an effect."""
    is_strict: bool = True
    """Whether a recipe may not write them either; recipes are made from others, which set some of them routinely."""

    def matches(self, path: str) -> bool:
        """Whether a field is one of these."""
        return _is_among(path, self.fields)


@functools.cache  # every written field is compared with every rule, whenever a configuration is checked
def _is_among(path: str, patterns: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns.split())


def _while(path: str, *values: Any) -> Callable[[Any], str]:
    """Unused while the field at `path` has one of these values."""

    def find(config: Any) -> str:
        value = _read(config, path)
        return f"{path} is {format_words(value) or 'empty'}" if value in values else ""

    return find


def _unless(path: str, *values: Any) -> Callable[[Any], str]:
    """Unused while the field at `path` has any other value than these."""

    def find(config: Any) -> str:
        value = _read(config, path)
        return "" if value in values else f"{path} is {format_words(value) or repr(value)}"

    return find


def _no_windowed_layer(config: Any) -> str:
    kinds = _read(config, "model.layer_kinds")
    return f"model.layer_kinds is {format_words(kinds)}" if kinds and "window" not in kinds else ""


def _is_all_dense(config: Any) -> bool:
    return _read(config, "model.n_dense_layers") == _read(config, "model.n_layers")


def _no_experts(config: Any) -> str:
    if config.model.find_moe() is not None:
        return ""
    if _is_all_dense(config):
        return f"model.n_dense_layers is {config.model.n_layers}, all of them"
    return "model.moe.n_experts is 0"


def _some_experts(config: Any) -> str:
    return f"--model.n_dense_layers {config.model.n_layers - 1}" if _is_all_dense(config) else "--model.moe.n_experts 8"


def _only_experts(config: Any) -> str:
    n_dense_layers = _read(config, "model.n_dense_layers")
    count = getattr(config.model, "count_dense_layers", None)
    if config.model.find_moe() is None or n_dense_layers or (count is not None and count()):
        return ""
    return (
        "model.n_dense_layers is 0" if n_dense_layers == 0 else f"model.moe.n_experts is {config.model.moe.n_experts}"
    )


def _one_choice_of_groups(config: Any) -> str:
    router = _read(config, "model.moe.router")
    if router is None or router.top_groups < router.n_groups:
        return ""
    return f"model.moe.router.top_groups is {router.top_groups} of model.moe.router.n_groups {router.n_groups}"


def _late_profile(config: Any) -> str:
    start, steps = config.profiler.start, config.training.steps
    return f"training.steps is {steps}" if start > steps else ""


def _hidden_collectives(config: Any) -> str:
    mode, fsdp = config.compile.mode, config.parallelism.fsdp
    return "" if config.has_explicit_collectives else f"compile.mode is {mode} and parallelism.fsdp is {fsdp}"


def _neither_saved_nor_loaded(config: Any) -> str:
    is_used = config.checkpoint.enabled or config.checkpoint.load
    return "" if is_used else "checkpoint.enabled is false and checkpoint.load is empty"


def _nothing_loaded(config: Any) -> str:
    is_used = config.checkpoint.load or config.checkpoint.initial_load_path
    return "" if is_used else "checkpoint.load is empty"


def _validated_elsewhere(config: Any) -> str:
    names = format_words(config.dataloader.validation_datasets)
    return f"dataloader.validation_datasets is {names}" if names else ""


def _chosen_by_class(config: Any) -> str:
    source = config.dataloader.source
    if source is None and config.dataloader.mixture:
        return f"dataloader.mixture is {format_words(config.dataloader.mixture)}"
    return f"dataloader.source is {type(source).__qualname__}" if source is not None else ""


def _one_source(config: Any) -> str:
    return "" if config.dataloader.has_mixture() else "dataloader.mixture is empty"


def _find_named(config: Any) -> list[str]:
    """The datasets that are read by their names."""
    loader = config.dataloader
    named = [*parse_mixture(loader.mixture), *parse_validation_sets(loader.validation_datasets)]
    is_read = loader.source is None and not loader.mixture
    return [*([loader.dataset] if is_read else []), *(each.dataset for each in named)]


def _not_streamed(config: Any) -> str:
    names = _find_named(config)
    if any(name.startswith(HUB_PREFIX) for name in names):
        return ""
    return _chosen_by_class(config) or f"dataloader.dataset is {names[0]}"


def _all_are(*kinds: str) -> Callable[[Any], str]:
    """Unused while every dataset is of one of these kinds."""

    def find(config: Any) -> str:
        names = _find_named(config)
        is_unused = all(_find_kind(name) in kinds for name in names)
        return (_chosen_by_class(config) or f"dataloader.dataset is {names[0]}") if is_unused else ""

    return find


def _find_kind(dataset: str) -> str:
    """What a dataset is by its name and, where that does not tell, by a look at the disk."""
    if dataset == BUILTIN:
        return "builtin"
    if dataset.startswith(HUB_PREFIX):
        return "stream"
    path = Path(dataset)
    if path.is_dir():
        return "shards" if (path / "index.json").is_file() else "folder"
    name = path.name.removesuffix(".gz")
    if name.endswith((*LINES_ENDINGS, PARQUET_ENDING)):
        return "rows"
    return "text" if name.endswith(TEXT_ENDINGS) else "unknown"


RULES = (
    EffectRule(
        "model.rope.factor", _while("model.rope.scaling", "none"), "--model.rope.scaling llama3 (or yarn, linear)"
    ),
    EffectRule(
        "model.rope.original_max_seq_len",
        _while("model.rope.scaling", "none", "linear"),
        "--model.rope.scaling llama3 (or yarn)",
    ),
    EffectRule(
        "model.rope.scaling", _while("model.rope.factor", 1.0), "--model.rope.factor 4 as well", is_strict=False
    ),
    EffectRule(
        "model.rope.low_freq_factor model.rope.high_freq_factor",
        _unless("model.rope.scaling", "llama3"),
        "--model.rope.scaling llama3",
    ),
    EffectRule(
        "model.rope.beta_fast model.rope.beta_slow model.rope.truncate model.rope.mscale model.rope.mscale_all_dim",
        _unless("model.rope.scaling", "yarn"),
        "--model.rope.scaling yarn",
    ),
    EffectRule(
        "model.window model.window_theta",
        _no_windowed_layer,
        "--model.layer_kinds with some layers 'window', or none at all",
    ),
    EffectRule("model.moe.*", _no_experts, _some_experts),
    EffectRule("model.feed_forward.*", _only_experts, "a model with dense layers"),
    EffectRule("model.moe.router.group_score", _one_choice_of_groups, "--model.moe.router.n_groups 4"),
    EffectRule(
        "model.moe.router.bias_update_rate",
        _while("model.moe.router.expert_bias", False),
        "--model.moe.router.expert_bias true",
    ),
    EffectRule("compile.backend compile.components", _unless("compile.mode", "layer"), "--compile.mode layer"),
    EffectRule(
        "compile.numerics compile.cuda_graph compile.tune_kernels",
        _unless("compile.mode", "graph"),
        "--compile.mode graph",
    ),
    EffectRule("compile.artifact_on_mismatch", _while("compile.artifact", ""), "--compile.artifact DIR"),
    EffectRule(
        "compile.artifact_key_file compile.artifact_trust_shared_folder",
        _while("compile.artifact", ""),
        "--compile.artifact DIR",
        is_strict=False,
    ),
    EffectRule(
        "compile.expert_overlap.chunk_dim compile.expert_overlap.modules compile.expert_overlap.num_chunks "
        "compile.expert_overlap.grad_sum",
        _while("compile.expert_overlap.strategy", "off"),
        "--compile.expert_overlap.strategy trace",
    ),
    EffectRule("passes.*", _unless("compile.mode", "graph"), "--compile.mode graph"),
    EffectRule(
        "parallelism.pipeline_schedule parallelism.pipeline_stages parallelism.pipeline_virtual_stages",
        _while("parallelism.pipeline_parallel_degree", 1),
        "--parallelism.pipeline_parallel_degree 2",
    ),
    EffectRule(
        "passes.overlap_experts.*",
        _while("compile.expert_overlap.strategy", "off"),
        "--compile.expert_overlap.strategy trace",
    ),
    EffectRule(
        "lr_scheduler.decay_fraction lr_scheduler.min_factor",
        _while("lr_scheduler.decay", "constant"),
        "--lr_scheduler.decay cosine",
    ),
    EffectRule(
        "lr_scheduler.decay lr_scheduler.min_factor",
        _while("lr_scheduler.decay_fraction", 0.0),
        "--lr_scheduler.decay_fraction 1",
    ),
    EffectRule(
        "checkpoint.interval checkpoint.keep_last checkpoint.async_save checkpoint.on_error "
        "checkpoint.slow_write_seconds",
        _while("checkpoint.enabled", False),
        "--checkpoint.enabled true",
        is_strict=False,
    ),
    EffectRule("lr_scheduler.on_extend", _while("checkpoint.load", ""), "--checkpoint.load latest", is_strict=False),
    EffectRule("checkpoint.allow_model_changes", _nothing_loaded, "--checkpoint.load latest", is_strict=False),
    EffectRule("checkpoint.folder", _neither_saved_nor_loaded, "--checkpoint.enabled true", is_strict=False),
    EffectRule("validator.samples", _while("validator.interval", 0), "--validator.interval 50", is_strict=False),
    EffectRule(
        "dataloader.validation_datasets", _while("validator.interval", 0), "--validator.interval 50", is_strict=False
    ),
    EffectRule("dataloader.dataset", _chosen_by_class, "no --dataloader.source and no --dataloader.mixture"),
    EffectRule("dataloader.held_out_fraction", _validated_elsewhere, "no --dataloader.validation_datasets"),
    EffectRule(
        "dataloader.source_loss_interval", _one_source, "--dataloader.mixture web=0.7:data/web code=0.3:data/code"
    ),
    EffectRule("profiler.steps profiler.every", _while("profiler.start", 0), "--profiler.start 10"),
    EffectRule("profiler.start", _late_profile, "a start within the run"),
    EffectRule("metrics.expert_load_limit metrics.expert_load_patience", _no_experts, _some_experts),
    EffectRule(
        "metrics.expert_load_patience", _while("metrics.expert_load_limit", 0.0), "--metrics.expert_load_limit 3"
    ),
    EffectRule(
        "metrics.slow_rank_limit", _while("metrics.rank_times_interval", 0), "--metrics.rank_times_interval 1000"
    ),
    EffectRule(
        "metrics.rank_times_interval metrics.slow_rank_limit",
        _hidden_collectives,
        "--compile.mode graph or eager, with --parallelism.fsdp auto",
        is_strict=False,
    ),
    EffectRule(
        "parallelism.context_parallel_method",
        _while("parallelism.context_parallel_degree", 1),
        "--parallelism.context_parallel_degree 2",
    ),
    EffectRule(
        "parallelism.context_parallel_gather",
        _while("parallelism.context_parallel_degree", 1),
        "--parallelism.context_parallel_degree 2",
    ),
    EffectRule(
        "parallelism.context_parallel_gather",
        _while("parallelism.context_parallel_method", "ulysses"),
        "--parallelism.context_parallel_method all_gather",
    ),
    EffectRule("fault_tolerance.*", _while("fault_tolerance.replicas", 0), "--fault_tolerance.replicas 2"),
    EffectRule("model.max_documents", _while("model.mask", "causal"), "--model.mask document"),
    EffectRule("metrics.log_interval", _while("metrics.progress", "off"), "--metrics.progress lines", is_strict=False),
    EffectRule(
        "dataloader.hf_subset dataloader.hf_split dataloader.hf_revision dataloader.stream_buffer "
        "dataloader.stream_lanes dataloader.stream_retries",
        _not_streamed,
        f"--dataloader.dataset {HUB_PREFIX}NAME",
    ),
    EffectRule("dataloader.stream_buffer", _while("dataloader.shuffle", False), "--dataloader.shuffle true"),
    EffectRule("dataloader.text_field", _all_are("builtin", "shards", "text"), "--dataloader.dataset texts.jsonl"),
    EffectRule(
        "dataloader.document_separator",
        _all_are("builtin", "shards", "stream", "rows"),
        "--dataloader.dataset texts.txt",
    ),
    EffectRule(
        "dataloader.verify_shards", _all_are("builtin", "stream", "rows", "text", "folder"), "packed token shards"
    ),
)


_ZERO_IS_OFF = (
    "checkpoint.interval checkpoint.slow_write_seconds dataloader.held_out_fraction dataloader.source_loss_interval "
    "metrics.expert_load_limit metrics.rank_times_interval"
)
"""Fields that 0 switches off: then nobody misses their effect."""


@dataclass(frozen=True)
class Unused:
    """A field that was written and has no effect."""

    path: str
    value: Any
    reason: str
    do: str
    is_strict: bool


def find_unused(config: BaseConfig, *, also: Collection[str] = ()) -> Iterator[Unused]:
    """Every written field without effect. Fields that have no default count when they are in `also`."""
    defaults = find_defaults(config)
    written = [
        leaf
        for leaf in find_leaves(config)
        if (leaf.path not in defaults and leaf.path in also)
        or (leaf.path in defaults and leaf.value != defaults[leaf.path])
    ]
    rules = (*RULES, *_make_rules_of_passes(config))
    for leaf in written:
        for rule in () if leaf.value == 0 and _is_among(leaf.path, _ZERO_IS_OFF) else rules:
            if rule.matches(leaf.path) and (reason := rule.when(config)):
                do = rule.do if isinstance(rule.do, str) else rule.do(config)
                yield Unused(leaf.path, leaf.value, reason, do, rule.is_strict)
                break


def check_unused(config: BaseConfig, *, flags: Collection[str] = ()) -> None:
    """Refuse a written field without effect: any that a recipe may not write either, and whatever is in `flags`."""
    for unused in find_unused(config, also=flags):
        counts = unused.path in flags if flags else unused.is_strict
        if counts:
            value = format_words(unused.value) or repr(unused.value)
            raise ConfigError(
                f"{unused.path} is {value} while {unused.reason}",
                why=f"{unused.path} would have no effect",
                do=f"leave --{unused.path} out, or write {unused.do}",
            )


def reset_unused(config: Any, *, flags: Collection[str]) -> Any:
    """The config with fields back at their defaults that `flags` leave without effect: switching off is enough."""
    defaults = find_defaults(config)
    for unused in list(find_unused(config)):
        if unused.path not in flags and unused.path in defaults:
            config = replace_leaf(config, unused.path, defaults[unused.path])
    return config


def _make_rules_of_passes(config: Any) -> list[EffectRule]:
    """The options of every pass that does not run."""
    passes = _read(config, "passes")

    def make(name: str, reason: str) -> EffectRule:
        do = f"--passes.off without {name}" if name in passes.off else passes.explain_on(name)
        return EffectRule(f"passes.{name}.*", lambda _: reason, do)

    return [make(*each) for each in passes.find_off(config.compile.numerics).items()] if passes else []


def _read(config: Any, path: str) -> Any:
    """The value at a dotted path; None where the model has no such part."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config

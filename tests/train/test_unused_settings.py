"""What was asked for happens, or it is an error: a setting that another one leaves without effect is refused."""

import shlex
from fnmatch import fnmatchcase

import pytest

from monograph.cli import main
from monograph.commands.request import read_request
from monograph.commands.table import COMMANDS
from monograph.config.configurable import BaseConfig, check_config
from monograph.config.json_form import dump_json, parse_json
from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.models.qwen3.sizes import qwen3_debugmodel
from monograph.recipes.catalog import find_recipes, load_recipe
from monograph.train.unused_settings import RULES, find_unused

LLAMA, QWEN, EXPERTS, DEEPSEEK = (
    "llama3_debugmodel",
    "qwen3_debugmodel",
    "qwen3_debugmodel_moe",
    "deepseek_v3_debugmodel",
)
OVERLAP = "compile.expert_overlap"
STRETCHED, YARN = (f"--model.rope.scaling {kind} --model.rope.factor 4" for kind in ("llama3", "yarn"))
TRACE = f"--{OVERLAP}.strategy trace --passes.off overlap_experts"

REFUSED = [
    # recipe, flag without effect, the flags that leave it without, the setting that is named, what gives it an effect
    (LLAMA, "--model.rope.factor 4", "", "model.rope.scaling", "--model.rope.scaling llama3"),
    (LLAMA, "--model.rope.original_max_seq_len 64", "", "model.rope.scaling", YARN),
    (LLAMA, "--model.rope.scaling yarn", "", "model.rope.factor", ""),
    (LLAMA, "--model.rope.low_freq_factor 2", "", "model.rope.scaling", STRETCHED),
    (LLAMA, "--model.rope.high_freq_factor 8", YARN, "model.rope.scaling", ""),
    (LLAMA, "--model.rope.beta_fast 16", STRETCHED, "model.rope.scaling", ""),
    (LLAMA, "--model.rope.beta_slow 2", "", "model.rope.scaling", YARN),
    (LLAMA, "--model.rope.mscale 0.7", "", "model.rope.scaling", YARN),
    (LLAMA, "--model.rope.truncate false", "", "model.rope.scaling", YARN),
    ("gpt_oss_debugmodel", "--model.window 8", "--model.n_layers 1 --model.layer_kinds full", "model.layer_kinds", ""),
    (
        "gemma3_debugmodel",
        "--model.window_theta 500",
        "--model.n_layers 1 --model.layer_kinds full",
        "model.layer_kinds",
        "",
    ),
    (DEEPSEEK, "--model.rope.mscale_all_dim 0.7", "--model.rope.scaling none", "model.rope.scaling", ""),
    (QWEN, "--model.moe.hidden_dim 64", "", "model.moe.n_experts", "--model.moe.n_experts 8"),
    (QWEN, "--model.moe.n_shared_experts 1", "", "model.moe.n_experts", "--model.moe.n_experts 8"),
    (QWEN, "--model.moe.router.top_k 2", "", "model.moe.n_experts", "--model.moe.n_experts 8"),
    (QWEN, "--model.moe.experts.backend loop", "", "model.moe.n_experts", "--model.moe.n_experts 8"),
    (EXPERTS, "--model.moe.hidden_dim 64", "--model.moe.n_experts 0", "model.moe.n_experts", ""),
    (DEEPSEEK, "--model.moe.n_experts 4", "--model.n_dense_layers 6", "model.n_dense_layers", ""),
    (EXPERTS, "--model.feed_forward.hidden_dim 64", "", "model.moe.n_experts", ""),
    (DEEPSEEK, "--model.feed_forward.hidden_dim 64", "--model.n_dense_layers 0", "model.n_dense_layers", ""),
    (EXPERTS, "--model.moe.router.group_score max", "", "model.moe.router.n_groups", ""),
    (DEEPSEEK, "--model.moe.router.group_score max", "--model.moe.router.top_groups 4", "router.n_groups", ""),
    (EXPERTS, "--model.moe.router.bias_update_rate 0.1", "", "model.moe.router.expert_bias",
     "--model.moe.router.expert_bias true"),
    (LLAMA, "--compile.backend eager", "", "compile.mode", "--compile.mode layer"),
    (LLAMA, "--compile.components model loss", "", "compile.mode", "--compile.mode layer"),
    (LLAMA, "--compile.backend aot_eager", "--compile.mode graph", "compile.mode", ""),
    (LLAMA, "--compile.artifact_on_mismatch compile", "--compile.mode graph", "compile.artifact", ""),
    (LLAMA, "--compile.artifact_key_file key", "", "compile.artifact", ""),
    (LLAMA, "--compile.artifact_trust_shared_folder true", "", "compile.artifact", ""),
    (DEEPSEEK, f"--{OVERLAP}.num_chunks 4", "", f"{OVERLAP}.strategy", TRACE),
    (DEEPSEEK, f"--{OVERLAP}.chunk_dim seq", "", f"{OVERLAP}.strategy", ""),
    (DEEPSEEK, f"--{OVERLAP}.modules layers.2", "", f"{OVERLAP}.strategy", TRACE),
    (DEEPSEEK, f"--{OVERLAP}.grad_sum after_reduce", "", f"{OVERLAP}.strategy", TRACE),
    (LLAMA, "--passes.off recompute", "--compile.mode eager", "compile.mode", ""),
    (LLAMA, "--parallelism.pipeline_schedule gpipe", "", "parallelism.pipeline_parallel_degree",
     "--parallelism.pipeline_parallel_degree 2"),
    (LLAMA, "--parallelism.pipeline_stages layers.2", "", "parallelism.pipeline_parallel_degree",
     "--parallelism.pipeline_parallel_degree 2"),
    (LLAMA, "--parallelism.pipeline_virtual_stages 1", "", "parallelism.pipeline_parallel_degree",
     "--parallelism.pipeline_parallel_degree 2"),
    (LLAMA, "--passes.bucket_collectives.max_bytes 9", "--compile.mode layer", "compile.mode", ""),
    (LLAMA, "--passes.bucket_collectives.max_bytes 9", "--compile.mode graph --passes.off bucket_collectives",
     "passes.off", ""),
    (LLAMA, "--passes.prefetch_all_gathers.ahead 2", "--compile.mode graph --passes.off prefetch_all_gathers",
     "passes.off", ""),
    (LLAMA, "--passes.offload_activations.min_bytes 9", "--compile.mode graph", "passes.offload_activations.budget_gib",
     "--passes.offload_activations.budget_gib 8"),
    (LLAMA, "--passes.offload_activations.prefetch_blocks 2", "--compile.mode graph",
     "passes.offload_activations.budget_gib", "--passes.offload_activations.budget_gib 8"),
    (LLAMA, "--passes.merge_matmuls.max_columns 9", "--compile.mode graph", "compile.numerics",
     "--passes.on merge_matmuls"),
    (LLAMA, "--passes.merge_matmuls.max_columns 9", "--compile.mode graph --passes.off merge_matmuls",
     "passes.off", ""),
    (LLAMA, "--compile.numerics fast", "--compile.mode eager", "compile.mode", ""),
    (LLAMA, "--compile.numerics fast", "--compile.mode layer", "compile.mode", ""),
    (LLAMA, "--compile.cuda_graph require", "--compile.mode eager", "compile.mode", ""),
    (LLAMA, "--compile.tune_kernels true", "--compile.mode eager", "compile.mode", ""),
    (LLAMA, "--compile.cuda_graph off", "--compile.mode layer", "compile.mode", ""),
    (DEEPSEEK, "--passes.overlap_experts.max_extra_bytes 9", "--compile.mode graph", f"{OVERLAP}.strategy", ""),
    (DEEPSEEK, "--passes.overlap_experts.max_extra_bytes 9",
     f"--compile.mode graph --{OVERLAP}.strategy trace --passes.off overlap_experts", "passes.off", ""),
    (LLAMA, "--lr_scheduler.min_factor 0.5", "--lr_scheduler.decay constant", "lr_scheduler.decay", ""),
    (LLAMA, "--lr_scheduler.decay_fraction 0.5", "--lr_scheduler.decay constant", "lr_scheduler.decay", ""),
    (LLAMA, "--lr_scheduler.min_factor 0.5", "--lr_scheduler.decay_fraction 0", "lr_scheduler.decay_fraction", ""),
    (LLAMA, "--lr_scheduler.decay linear", "--lr_scheduler.decay_fraction 0", "lr_scheduler.decay_fraction", ""),
    (LLAMA, "--checkpoint.interval 7", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--checkpoint.keep_last 7", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--checkpoint.async_save true", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--checkpoint.slow_write_seconds 5", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--checkpoint.on_error stop", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--lr_scheduler.on_extend hold", "", "checkpoint.load", "--checkpoint.load latest"),
    (LLAMA, "--checkpoint.allow_model_changes true", "", "checkpoint.load", "--checkpoint.load latest"),
    (LLAMA, "--checkpoint.folder there", "--checkpoint.enabled false", "checkpoint.enabled", ""),
    (LLAMA, "--validator.samples 7", "--validator.interval 0", "validator.interval", ""),
    (LLAMA, "--dataloader.validation_datasets t.txt", "--validator.interval 0", "validator.interval", ""),
    (LLAMA, "--dataloader.dataset t.txt", "--dataloader.mixture a=1:t.txt b=1:t.txt", "dataloader.mixture", ""),
    (LLAMA, "--dataloader.source_loss_interval 7", "", "dataloader.mixture", "--dataloader.mixture a=1:t.txt"),
    (LLAMA, "--metrics.rank_times_interval 7", "--compile.mode layer", "compile.mode", ""),
    (LLAMA, "--metrics.rank_times_interval 7", "--compile.mode eager --parallelism.fsdp fsdp2", "compile.mode", ""),
    (LLAMA, "--model.max_documents 4", "", "model.mask", "--model.mask document"),
    (LLAMA, "--parallelism.context_parallel_method ulysses", "", "parallelism.context_parallel_degree", ""),
    (DEEPSEEK, "--parallelism.context_parallel_gather latent", "", "parallelism.context_parallel_degree", ""),
    (DEEPSEEK, "--parallelism.context_parallel_gather latent",
     "--parallelism.context_parallel_degree 2 --parallelism.context_parallel_method ulysses",
     "parallelism.context_parallel_method", ""),
    (LLAMA, "--fault_tolerance.replica 1", "", "fault_tolerance.replicas", ""),
    (LLAMA, "--metrics.slow_rank_limit 3", "--metrics.rank_times_interval 0", "metrics.rank_times_interval", ""),
    (LLAMA, "--dataloader.held_out_fraction 0.5", "--dataloader.validation_datasets t.txt",
     "dataloader.validation_datasets", ""),
    (LLAMA, "--profiler.steps 7", "", "profiler.start", "--profiler.start 10"),
    (LLAMA, "--profiler.every 7", "", "profiler.start", "--profiler.start 10"),
    (LLAMA, "--profiler.start 101", "", "training.steps", ""),
    (LLAMA, "--metrics.expert_load_limit 2", "", "model.moe", ""),
    (LLAMA, "--metrics.expert_load_patience 2", "", "model.moe", ""),
    (DEEPSEEK, "--metrics.expert_load_patience 2", "--metrics.expert_load_limit 0", "metrics.expert_load_limit", ""),
    (LLAMA, "--metrics.log_interval 7", "--metrics.progress off", "metrics.progress", ""),
    (LLAMA, "--dataloader.dataset t.txt", "--dataloader.source BuiltinSource", "dataloader.source", ""),
    (LLAMA, "--dataloader.hf_subset en", "", "dataloader.dataset", "--dataloader.dataset hf:NAME"),
    (LLAMA, "--dataloader.hf_split test", "--dataloader.dataset t.txt", "dataloader.dataset", ""),
    (LLAMA, "--dataloader.hf_revision abc", "", "dataloader.dataset", "--dataloader.dataset hf:NAME"),
    (LLAMA, "--dataloader.stream_buffer 9", "", "dataloader.dataset", "--dataloader.dataset hf:NAME"),
    (LLAMA, "--dataloader.stream_lanes 9", "", "dataloader.dataset", "--dataloader.dataset hf:NAME"),
    (LLAMA, "--dataloader.stream_retries 9", "", "dataloader.dataset", "--dataloader.dataset hf:NAME"),
    (LLAMA, "--dataloader.stream_buffer 9", "--dataloader.dataset hf:NAME --dataloader.shuffle false",
     "dataloader.shuffle", ""),
    (LLAMA, "--dataloader.text_field body", "", "dataloader.dataset", "--dataloader.dataset texts.jsonl"),
    (LLAMA, "--dataloader.text_field body", "--dataloader.dataset t.txt.gz", "dataloader.dataset", ""),
    (LLAMA, "--dataloader.document_separator ;", "", "dataloader.dataset", "--dataloader.dataset texts.txt"),
    (LLAMA, "--dataloader.document_separator ;", "--dataloader.dataset t.parquet", "dataloader.dataset", ""),
    (LLAMA, "--dataloader.verify_shards sizes", "", "dataloader.dataset", ""),
]  # fmt: skip


def read(recipe, *flags):
    return read_request([recipe, *(word for text in flags for word in shlex.split(text))], BaseConfig())


@pytest.mark.parametrize(("recipe", "flag", "others", "named", "do"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_setting_without_effect_is_refused_with_the_one_that_decides_and_a_way_out(recipe, flag, others, named, do):
    path = flag.split()[0].removeprefix("--")
    with pytest.raises(ConfigError) as error:
        read(recipe, flag, others)
    assert path in error.value.what and named in error.value.what
    assert f"leave --{path} out" in error.value.do and do.partition(" ")[0] in error.value.do
    read(recipe, others)
    if do:
        assert read(recipe, flag, others, do).origins[path] == "flag", "the way out works"


def test_every_rule_has_a_case():
    paths = {flag.split()[0].removeprefix("--") for _, flag, *_ in REFUSED}
    for rule in RULES:
        for pattern in rule.fields.split():
            assert any(fnmatchcase(path, pattern) for path in paths), pattern


def test_every_field_of_a_rule_exists():
    known = {leaf.path for name in find_recipes() for leaf in find_leaves(load_recipe(name))}
    for rule in RULES:
        for pattern in rule.fields.split():
            assert any(fnmatchcase(path, pattern) for path in known), pattern


@pytest.mark.parametrize("name", find_recipes())
def test_no_recipe_has_a_setting_without_effect_and_its_json_has_none_either(name):
    config = load_recipe(name)
    assert list(find_unused(config)) == []
    check_config(parse_json(dump_json(config)))


@pytest.mark.parametrize(
    "off",
    [
        "--checkpoint.enabled false",
        "--validator.interval 0",
        "--lr_scheduler.decay constant",
        "--metrics.progress off",
        "--model.rope.scaling none",
    ],
)
@pytest.mark.parametrize(
    "name", [each if "debugmodel" in each else pytest.param(each, marks=pytest.mark.long) for each in find_recipes()]
)
def test_one_flag_switches_off_what_a_recipe_set_up(name, off):
    request = read(name, off)
    assert [each for each in find_unused(request.config) if each.is_strict] == []
    check_config(parse_json(dump_json(request.config)))


@pytest.mark.parametrize(
    ("name", "off"), [(EXPERTS, "--model.moe.n_experts 0"), (DEEPSEEK, "--model.n_dense_layers 6")]
)
def test_one_flag_makes_a_model_dense(name, off):
    config = read(name, off).config
    assert config.model.find_moe() is None and config.model.moe.router.top_k == 1


def test_a_flag_that_says_what_is_the_default_anyway_is_no_mistake():
    assert read(LLAMA, "--model.rope.factor 1 --compile.backend inductor --profiler.steps 3").config


def test_a_recipe_with_a_setting_without_effect_is_refused_too():
    config = load_recipe(LLAMA)
    config.model.rope.factor = 4.0
    with pytest.raises(ConfigError, match=r"model.rope.factor is 4.0 while model.rope.scaling is none"):
        check_config(config)
    config = load_recipe(QWEN)
    config.model = qwen3_debugmodel().replace(moe=config.model.moe.replace(hidden_dim=64))
    with pytest.raises(ConfigError, match=r"model.moe.hidden_dim is 64 while model.moe.n_experts is 0"):
        check_config(config)


@pytest.mark.parametrize(
    ("dataset", "flag"),
    [
        ("builtin", "--hf_subset en"),
        ("builtin", "--text_field body"),
        ("t.txt", "--stream_retries 3"),
        ("t.jsonl", "--document_separator ;"),
    ],
)
def test_packing_refuses_what_has_no_effect_on_its_dataset(tmp_path, capsys, dataset, flag):
    assert main(["data", "pack", dataset, str(tmp_path / "out"), *flag.split()]) == 2
    said = capsys.readouterr().err
    assert flag.split()[0] in said and dataset in said and "no effect" in said


def test_packed_shards_have_no_text_field_and_are_verified(tmp_path):
    (tmp_path / "index.json").write_text("{}")
    shards = f"--dataloader.dataset {tmp_path}"
    assert read(LLAMA, "--dataloader.verify_shards sizes", shards).config
    with pytest.raises(ConfigError, match=r"dataloader.text_field is body while dataloader.dataset"):
        read(LLAMA, "--dataloader.text_field body", shards)


@pytest.mark.parametrize("name", ["precompile", "artifact check"])
def test_a_key_file_reaches_the_commands_that_sign_or_verify(name):
    command = next(each for each in COMMANDS if each.name == name)
    flags = {path: "compile" if path.endswith("on_mismatch") else "true" for path in command.uses}
    words = [LLAMA, *(word for path, value in flags.items() for word in (f"--{path}", value))]
    config = read_request(words, BaseConfig(), uses=command.uses).config
    given = {leaf.path: str(leaf.value).lower() for leaf in find_leaves(config) if leaf.path in flags}
    assert given == flags and "compile.artifact_key_file" in given


@pytest.mark.parametrize(
    "flags",
    [
        "--checkpoint.enabled false --checkpoint.interval 0",
        "--checkpoint.enabled false --checkpoint.save_last false",
        "--checkpoint.enabled false --checkpoint.slow_write_seconds 0",
        "--dataloader.validation_datasets own=builtin --dataloader.held_out_fraction 0",
        "--dataloader.source_loss_interval 0",
        "--metrics.expert_load_limit 0",
        "--metrics.rank_times_interval 0 --parallelism.fsdp fsdp2 --compile.mode layer",
    ],
)
def test_a_switch_that_is_off_anyway_is_no_error(flags):
    assert read_request([LLAMA, *shlex.split(flags)], BaseConfig()).config

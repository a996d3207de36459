"""What a run promises about its numerics, and what `compile.numerics` chooses."""

from types import SimpleNamespace

import pytest

from monograph.commands.request import read_request
from monograph.config.configurable import BaseConfig, check_config
from monograph.errors import ConfigError
from monograph.execute.artifact.fields import STEP
from monograph.execute.artifact.load import Artifact
from monograph.execute.config import ActivationCheckpointConfig, CompileConfig
from monograph.passes.numerics import NumericsPromise, find_rounding_passes
from monograph.passes.order import ORDER
from monograph.run import build_step, train
from monograph.train.numerics import promise_numerics
from tests.execute.updates import one_rank, small
from tests.kit.runs import tiny_run

SAME = "bitwise identical to eager"
GRAPH = {"compile.mode": "graph", "model.n_layers": 1, "training.compute_dtype": "bfloat16"}
FAST = {**GRAPH, "compile.numerics": "fast"}
KEPT = {"parallelism.reshard_after_forward": False}
FAST_PASSES = {name for name, entry in ORDER.items() if entry.default == "fast"}


def read(flags):
    return read_request(["deepseek_v3_debugmodel", *flags.split()], BaseConfig()).config


def build(folder, changes):
    """The step of a tiny model: what ran, why the rest did not, and the promise."""
    config = small("llama3", folder, changes)
    with one_rank(config) as groups:
        step = build_step(config, groups)
        notes = {record.name: (record.status, record.note) for record in step.records}
        ran = set(step.ran_passes)
        step.close()
    return ran, notes, promise_numerics(config, ran=ran, device="cpu")


@pytest.mark.parametrize(
    ("flags", "promise"),
    [
        ("", SAME),
        ("--compile.mode layer", "within rounding of eager: FSDP2, compile.backend inductor"),
        ("--compile.mode layer --compile.backend aot_eager", "within rounding of eager: FSDP2"),
        ("--compile.mode eager", SAME),
        ("--compile.mode eager --parallelism.fsdp fsdp2", "within rounding of eager: FSDP2"),
        ("--optimizer.implementation single_pass", "within rounding of eager: optimizer.implementation single_pass"),
        (
            "--compile.mode eager --compile.expert_overlap.strategy trace --training.local_batch_size 4",
            "within rounding of eager: compile.expert_overlap",
        ),
    ],
)
def test_without_passes_the_promise_follows_from_the_settings(flags, promise):
    assert str(promise_numerics(read(flags), ran=(), device="cpu")) == promise


@pytest.mark.parametrize(
    ("flags", "kernel", "is_bitwise"),
    [
        ("", "auto", True),
        ("--compile.mode eager", "auto", True),
        ("--compile.mode layer", "fastest", False),
        ("--compile.numerics fast", "fastest", False),
        ("--model.attention.kernel fastest", "fastest", False),
        ("--model.attention.kernel fastest --debug.deterministic true", "fastest", True),
        ("--model.attention.kernel fastest --model.mask document", "fastest", True),
        ("--model.attention.kernel flash", "flash", False),
        ("--compile.numerics fast --model.attention.kernel triton", "triton", True),
    ],
)
def test_on_a_gpu_exact_numerics_have_attention_that_adds_in_one_order(flags, kernel, is_bitwise):
    config = read(flags)
    assert config.plan_model().attention.kernel == kernel
    assert ("attention" not in str(promise_numerics(config, ran=(), device="cuda"))) is is_bitwise


def test_passes_that_say_they_change_bits_are_named_and_unknown_ones_promise_nothing():
    assert find_rounding_passes(["recompute", "merge_matmuls", "narrow_gradients"], ORDER) == ["merge_matmuls"]
    assert find_rounding_passes(["somebody_elses"], ORDER) == ["somebody_elses"]
    assert str(NumericsPromise(("a", "b"))) == "within rounding of eager: a, b"


def test_exact_numerics_run_bitwise_passes_and_say_so(tmp_path):
    ran, notes, promise = build(tmp_path, {**GRAPH, **KEPT})
    assert not ran & FAST_PASSES and str(promise) == SAME
    status, note = notes["cache_cast_weights"]
    assert status == "skipped" and "single_pass" in note


def test_fast_numerics_add_passes_the_single_pass_optimizer_and_cached_casts(tmp_path):
    ran, _, promise = build(tmp_path, {**FAST, **KEPT})
    assert ran >= FAST_PASSES | {"cache_cast_weights"}
    rounding = FAST_PASSES - {"narrow_gradients"}
    assert set(promise.causes) == {*rounding, "optimizer.implementation single_pass"}


def test_an_optimizer_chosen_by_name_is_kept_and_what_needs_a_single_pass_is_skipped(tmp_path):
    ran, notes, promise = build(tmp_path, {**FAST, **KEPT, "optimizer.implementation": "foreach"})
    assert ran >= {"merge_matmuls", "fuse_swiglu_epilogue"}
    for name in ("narrow_gradients", "cache_cast_weights"):
        assert notes[name][0] == "skipped" and "single_pass" in notes[name][1]
    assert "optimizer.implementation single_pass" not in promise.causes


def test_resharded_weights_are_not_cached_unless_asked_for(tmp_path):
    _, notes, _ = build(tmp_path, FAST)
    assert notes["cache_cast_weights"] == (
        "skipped",
        "parallelism.reshard_after_forward is true: cached copies would cost memory",
    )
    ran, _, _ = build(tmp_path, {**GRAPH, "passes.on": ("cache_cast_weights",)})
    assert "cache_cast_weights" in ran


def test_which_activations_auto_saves_depends_on_how_the_step_runs_and_a_written_mode_stays():
    ways = {"eager": {"mode": "eager"}, "exact": {"mode": "graph"}, "fast": {"mode": "graph", "numerics": "fast"}}
    found = {name: ActivationCheckpointConfig().resolve(CompileConfig(**way)) for name, way in ways.items()}
    assert found == {"eager": "none", "exact": "selective", "fast": "min_cut"}
    assert ActivationCheckpointConfig(mode="full").resolve(CompileConfig(**ways["fast"])) == "full"


def test_narrow_gradients_asked_for_without_an_optimizer_that_reads_them_are_refused():
    with pytest.raises(ConfigError, match="implementation single_pass"):
        check_config(read("--compile.mode graph --passes.on narrow_gradients"))
    check_config(read("--compile.mode graph --compile.numerics fast --passes.on narrow_gradients"))


def test_a_run_says_and_writes_what_it_promises(tmp_path):
    train(tiny_run(tmp_path, {"training.steps": 1, "compile.mode": "graph", "debug.log_level": "info"}, model="llama3"))
    assert (tmp_path / "numerics.txt").read_text() == f"{SAME}\n"
    assert f"numerics: {SAME}" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_a_run_from_an_artifact_promises_what_its_passes_do(tmp_path):
    passes = [{"name": "recompute", "status": "ran"}, {"name": "merge_matmuls", "status": "off"}]
    manifest = SimpleNamespace(sections={"passes": {STEP: passes}})
    assert Artifact(tmp_path, manifest, None).ran_passes(STEP) == ["recompute"]

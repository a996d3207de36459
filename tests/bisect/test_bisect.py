"""bisect finds the pass and the node that changed a number, the update, and the rank."""

import json
import shlex
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from monograph import cli
from monograph.bisect.differences import find_difference
from monograph.bisect.run import Outcome
from monograph.bisect.show import describe_outcomes
from monograph.commands.bisect_lines import check_bisect, make_eager
from monograph.commands.insight_arguments import BisectArguments
from monograph.errors import CheckpointError
from monograph.run import train
from monograph.train.optimizer_config import AdamWConfig
from tests.bisect.faults import FAULTS, planted, stale_casts
from tests.bisect.on_ranks import bisect_two, bisect_with_bad_rank, bisect_with_bad_stage, bisect_with_fault
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.test_cli import RUN_MANY

QUICK = ("recompute",)
"""Faults of `make test`; the others are long."""


def graph_config(model, folder, changes=None, **degrees):
    return tiny(model, folder, {"compile.mode": "graph", **(changes or {})}, **degrees)


def locate(name, folder):
    fault = FAULTS[name]
    config = graph_config(fault.model, folder, fault.flags, **fault.degrees)
    if fault.ranks == 1:
        return bisect_with_fault(config, name)
    return pool.run(fault.ranks, bisect_with_fault, config, name)[0]


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.long) for each in FAULTS]
)
def test_a_fault_in_a_pass_is_located_to_the_pass_and_the_node(name, tmp_path):
    outcome, wrong = locate(name, tmp_path)
    assert outcome.step == 1
    finding = outcome.findings["A"]
    assert (finding.kind, finding.name) == ("pass", name)
    node = finding.node
    assert node is not None and node.value is not None
    if name == "chunk_experts":
        return  # every node of a chunk is new: nothing before the chunks are joined again can be compared
    shown = " ".join(node.after)
    assert node.node in wrong or any(
        f"{each} = " in shown or f"{each}," in shown or f"{each})" in shown for each in wrong
    )
    text = describe_outcomes([outcome], "within 1e-05")
    assert f"A: pass {name}" in text and "before:" in text and "after:" in text


def test_equal_runs_are_equal_and_say_how_many_updates_were_compared(tmp_path):
    config = graph_config("deepseek_v3", tmp_path, {"model.n_layers": 2})
    outcome = bisect_two(config, config.replace(compile=config.compile.replace(mode="eager")), 2)
    assert outcome.step == 0
    assert describe_outcomes([outcome], "bit for bit") == (
        "equal bit for bit: loss, gradients, weights and optimizer state of 2 updates on one rank, and the learning "
        "rates of 4 steps"
    )


def test_an_optimizer_that_differs_is_found_where_loss_and_gradients_agree(tmp_path):
    config = graph_config("llama3", tmp_path, {"model.n_layers": 1})
    other = config.replace(optimizer=AdamWConfig(lr=config.optimizer.lr, eps=1e-3))
    outcome = bisect_two(config, other, 3)
    assert (outcome.step, outcome.findings["both"].kind) == (1, "optimizer")
    assert "loss and gradients are equal" in describe_outcomes([outcome], "bit for bit")


WARMUP = {"lr_scheduler.warmup_steps": 2000, "training.steps": 10_000}


@pytest.mark.parametrize(
    ("change", "kind", "step", "shown"),
    [
        ({"optimizer.lr": 2e-3}, "optimizer", 1, "lr 0.002"),
        ({"optimizer.weight_decay": 0.0}, "optimizer", 1, "loss and gradients are equal"),
        ({"training.max_norm": 0.5}, "optimizer", 1, "max_norm 0.5"),
        ({"lr_scheduler.decay": "linear"}, "schedule", 2001, "the learning rate"),
        ({"lr_scheduler.total_steps": 20_000}, "schedule", 2001, "the learning rate"),
        ({"training.freeze": ("layers.0.*",)}, None, 1, "only A has it"),
    ],
)
def test_settings_of_the_update_that_differ_are_found_whatever_the_warmup(change, kind, step, shown, tmp_path):
    left, right = (tiny("llama3", tmp_path, {"model.n_layers": 1, **WARMUP, **each}) for each in ({}, change))
    outcome = bisect_two(left, right, 1)
    assert outcome.step == step
    assert kind is None or outcome.findings["both"].kind == kind
    assert shown in describe_outcomes([outcome], "bit for bit")


def test_runs_are_compared_from_where_they_start(tmp_path):
    """A checkpoint's weights, optimizer state, data and rates; and a run from scratch starts elsewhere."""
    small = {"model.n_layers": 1, "checkpoint.interval": 2, "training.steps": 4}
    train(tiny("llama3", tmp_path, {**small, "training.steps": 2, "lr_scheduler.total_steps": 4}))
    scratch, eager = (tiny("llama3", tmp_path, {**small, "checkpoint.load": load}) for load in ("", "latest"))
    graph = eager.replace(compile=eager.compile.replace(mode="graph"))
    assert bisect_two(graph, eager, 2) == Outcome(2, 2)
    outcome = bisect_two(scratch, eager, 1)
    assert outcome.findings["both"].kind == "start" and "B after step 2" in describe_outcomes([outcome], "")


@pytest.mark.long
def test_what_shows_only_in_a_later_update_is_found_there(tmp_path):
    """The cast copies of weights are stale: the first update is right, and both graphs are."""
    changes = {"training.compute_dtype": "bfloat16", "optimizer.implementation": "single_pass"}
    changes |= {"parallelism.reshard_after_forward": False}
    config = graph_config("llama3", tmp_path, changes)
    with stale_casts():
        outcome = bisect_two(config, config.replace(passes=config.passes.replace(off=("cache_cast_weights",))), 4)
    assert (outcome.step, outcome.findings["both"].kind) == (2, "execution")


@pytest.mark.long
def test_captures_that_differ_are_compared_module_by_module(tmp_path):
    """Another epsilon in the norms is no pass's fault: the first module with a norm is named."""
    config = graph_config("llama3", tmp_path)
    outcome = bisect_two(config, config.replace(model=config.model.replace(norm_eps=1e-2)), 1)
    finding = outcome.findings["both"]
    assert finding.kind == "capture" and finding.node.path == "layers.0.attention_norm"
    assert finding.node.source.startswith("monograph/")


@pytest.mark.long
def test_a_rank_that_computes_something_else_is_named(tmp_path):
    config = graph_config("llama3", tmp_path)
    outcomes = pool.run(2, bisect_with_bad_rank, config, 1)[0]
    text = describe_outcomes(outcomes, "within 1e-05")
    assert text.startswith("different: update 1, on rank 1 of 2\n  gradient layers.1.attention.wo.weight: ")
    assert outcomes[1].findings["both"].kind == "execution" and "on rank 1:" in text


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [(2, {}), pytest.param(4, {"shard": 2, "pipeline_schedule": "zero_bubble"}, marks=pytest.mark.long)],
)
def test_a_fault_on_one_pipeline_stage_is_located_to_the_stage_the_pass_and_the_node(ranks, changes, tmp_path):
    small = {"training.global_batch_size": 2, "model.n_layers": 2}
    config = graph_config("llama3", tmp_path, small, pipeline_parallel_degree=2, **changes)
    outcomes = pool.run(ranks, bisect_with_bad_stage, config, "remove_no_ops", 1)[0]
    assert [sorted(each.findings) for each in outcomes] == [[]] * (ranks // 2) + [["A"]] * (ranks // 2)
    finding = outcomes[-1].findings["A"]
    assert (finding.kind, finding.name, finding.stage) == ("pass", "remove_no_ops", 1)
    assert finding.node is not None and finding.node.path.startswith("layers.1")
    text = describe_outcomes(outcomes, "within 1e-05")
    assert f"different: update 1, on all {ranks} ranks" in text, "a wrong stage changes the others' gradients"
    assert "A: pass remove_no_ops on stage 1" in text and f"on rank {ranks // 2}:" in text


IN_CHUNKS = ("recompute", "fuse_kernels")
"""Faults before and after the pass that cuts."""
CHUNKS = {
    **{"training.local_batch_size": 4, "model.n_layers": 1, "model.kernels": "fused"},
    **{"passes.off": ("overlap_experts",), "compile.expert_overlap.modules": "layers.*.moe"},
}


@pytest.mark.parametrize("strategy", ["trace", "graph"])
@pytest.mark.parametrize("fault", ["", *(pytest.param(each, marks=pytest.mark.long) for each in IN_CHUNKS)])
def test_a_line_with_chunked_experts_is_compared_with_eager_chunks(fault, strategy, tmp_path):
    """Chunks round differently from whole experts; the pass that cuts them is not to blame for another's fault."""
    config = graph_config("qwen3_moe", tmp_path, {**CHUNKS, "compile.expert_overlap.strategy": strategy})
    with planted(fault) if fault else nullcontext():
        outcome = bisect_two(config, make_eager(config), 1)
    assert {side: (each.kind, each.name) for side, each in outcome.findings.items()} == (
        {"A": ("pass", fault)} if fault else {}
    )


def test_differences_are_of_bits_and_know_where_they_are():
    left = torch.tensor([[1.0, float("nan")], [3.0, 4.0]])
    assert find_difference(left, left.clone()) is None
    right = left.clone()
    right[1, 0] = 3.0 + 2**-20
    found = find_difference(left, right)
    assert (found.index, found.count, found.of) == ((1, 0), 1, 4)
    assert find_difference(left, right, tolerance=1e-3) is None
    assert find_difference(left, torch.full((2, 2), float("nan"))).count == 3
    assert "float32[2, 2] and float32[4]" in str(find_difference(left, left.flatten()))
    assert find_difference(left, left.bfloat16()) is None, "the same numbers in another dtype"
    assert "(float32[2, 2] and bfloat16[2, 2])" in str(find_difference(left, 2 * left.bfloat16()))


PIPED = "llama3_debugmodel --ranks 2 --parallelism.pipeline_parallel_degree 2 --training.global_batch_size 16"
REFUSED = {
    "": "LEFT is missing",
    "llama3_debugmodel --steps 0": "--steps must be >= 1",
    "llama3_debugmodel --tolerance -1": "not negative",
    "'llama3_debugmodel --ranks 2' llama3_debugmodel": "different meshes",
    "llama3_debugmodel qwen3_debugmodel": "different models",
    "llama3_debugmodel 'llama3_debugmodel --training.seq_len 64'": "differ in training.seq_len",
    "'llama3_debugmodel --compile.mode eager'": "with its own eager step",
    "'llama3_debugmodel --passes.off buckets'": "there is no pass of that name",
    f"'{PIPED} --parallelism.pipeline_schedule zbv'": "there is no second run",
    f"'{PIPED}' '{PIPED} --parallelism.pipeline_stages head'": "different pipeline stages",
}


def test_what_cannot_be_compared_is_refused_at_once_without_torch():
    lines = [["bisect", *shlex.split(words)] for words in REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY], input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    for (code, _, err, seconds), reason in zip(json.loads(done.stdout), REFUSED.values(), strict=True):
        assert (code, reason in err) == (2, True), err
        assert seconds < 2


@pytest.mark.parametrize("flag", ["checkpoint.load", "checkpoint.initial_load_path"])
def test_a_start_that_is_not_there_is_refused_instead_of_left_out(flag):
    with pytest.raises(CheckpointError, match="missing"):
        check_bisect(BisectArguments(left="llama3_debugmodel", right=f"llama3_debugmodel --{flag} missing"))


def test_the_command_prints_the_verdict_and_its_exit_code_says_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = "llama3_debugmodel --model.n_layers 1 --training.seq_len 32 --debug.log_level warning"
    line += " --model.dim 64 --model.vocab_size 272 --model.feed_forward.hidden_dim 96"
    line += " --training.compute_dtype bfloat16"  # then fast leaves gradients in another dtype, but the same numbers
    assert cli.main(["bisect", line, "--steps", "1"]) == 0
    assert "equal bit for bit" in capsys.readouterr().out
    assert cli.main(["bisect", line, f"{line} --compile.numerics fast", "--steps", "1"]) == 1
    assert "B: pass merge_matmuls" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())

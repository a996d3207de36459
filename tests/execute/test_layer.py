"""Per-layer compile as users meet it: how many graphs there are, what is refused, and how a refusal reads."""

import inspect
import os

import pytest
import torch
from torch import nn

import monograph.execute.layer as layer
from monograph.cli import main
from monograph.execute.layer import (
    CompiledLoss,
    CompileFailed,
    CountingBackend,
    compile_blocks,
    compile_loss,
    explained,
)
from monograph.parallel.groups import joined_groups
from monograph.run import build_step
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients
from tests.execute.updates import (
    CPU,
    LAYER,
    PATIENCE_SECONDS,
    differences,
    make_updates,
    normalizers_of,
    one_rank,
    read_batches,
    small,
)
from tests.kit.ranks import pool

CAPTURED = {"compile.mode": "layer", "compile.backend": "eager"}
"""Captured and run as it is: for tests that only count."""


def run_length(step, batch, length):
    """One micro-batch cut to a length."""
    tensors = {"tokens": batch.tensors["tokens"][:, :length], "labels": batch.tensors["labels"][:, :length]}
    return step(tensors, normalizers_of(step, valid_tokens=length))


@pytest.mark.long
def test_a_new_sequence_length_is_compiled_once_and_the_counter_shows_it(tmp_path):
    config = small("llama3", tmp_path, CAPTURED)
    with one_rank(config) as groups:
        step = build_step(config, groups)
        batch = read_batches(config, step, 1)[0]
        counts = []
        for length in (32, 16, 32, 16, *range(3, 15)):
            run_length(step, batch, length)
            counts.append(step.compiled_graphs)
    assert counts[:4] == [1, 2, 2, 2]
    assert counts[4:] == [*range(3, 15)], "more shapes than torch's own limit of 8"


def test_shapes_that_never_end_are_an_error_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(layer, "MOST_GRAPHS", 2)
    config = small("llama3", tmp_path, CAPTURED)
    with one_rank(config) as groups:
        step = build_step(config, groups)
        batch = read_batches(config, step, 1)[0]
        run_length(step, batch, 32)
        run_length(step, batch, 16)
        with pytest.raises(CompileFailed, match=r"(?s)layers\.0 was compiled 2 times.*one shape") as caught:
            run_length(step, batch, 8)
    assert "cannot be captured" not in str(caught.value)


def count_graphs(config, groups):
    """The counter after one update."""
    return make_updates(config, groups, routings=[()])[-1].graphs


def test_2_and_6_equal_layers_compile_the_same_number_of_graphs(tmp_path):
    counts = []
    for layers in (2, 6):
        config = small("qwen3_moe", tmp_path, {**CAPTURED, "model.n_layers": layers})
        with one_rank(config) as groups:
            counts.append(count_graphs(config, groups))
    assert counts == [1, 1]


def count_on_ranks(configs):
    """As one of the ranks: the graphs of every config after one update."""
    with joined_groups(plan_run_mesh(configs[0], int(os.environ["WORLD_SIZE"])), CPU) as groups:
        return [count_graphs(config, groups) for config in configs]


@pytest.mark.long
def test_tensor_parallel_borders_and_exchanges_do_not_keep_layers_from_sharing_a_graph(tmp_path):
    """Boundaries are hooks, of which each module has its own."""
    changes = [{**CAPTURED, "model.n_layers": layers} for layers in (2, 5)]
    configs = [small("deepseek_v3", tmp_path, each, experts="grouped", tp=2, ep=2) for each in changes]
    assert pool.run(2, count_on_ranks, configs, timeout_seconds=PATIENCE_SECONDS) == [[2, 2], [2, 2]]


def test_a_counter_in_the_metrics_shows_the_graphs_of_every_component(tmp_path):
    for components, graphs in ((("loss",), 1), (("optimizer",), 1), (("model", "loss", "optimizer"), 3)):
        config = small("llama3", tmp_path, {**CAPTURED, "compile.components": components})
        with one_rank(config) as groups:
            counts = [update.graphs for update in make_updates(config, groups, routings=[(), (), ()])]
        assert counts == [graphs] * 3, components


def test_a_compiled_loss_leaves_the_bits_of_the_plain_one(tmp_path):
    ways = [{"parallelism.fsdp": "fsdp2"}, {**LAYER, "compile.components": ("loss",)}]
    runs = []
    for changes in ways:
        config = small("llama3", tmp_path, changes)
        with one_rank(config) as groups:
            runs.append(make_updates(config, groups, routings=[(), ()]))
    assert differences(*runs) == []
    assert [update.graphs for update in runs[1]] == [1, 1]


@pytest.mark.long
def test_compiling_twice_changes_nothing(tmp_path):
    def again(step):
        before = [block._compiled_call_impl for block in step.model.blocks().values()], step.model.head.loss
        other = CountingBackend("eager")
        compile_blocks(step.model, other)
        compile_loss(step.model, other)
        assert ([block._compiled_call_impl for block in step.model.blocks().values()], step.model.head.loss) == before

    config = small("llama3", tmp_path, {**CAPTURED, "compile.components": ("model", "loss")})
    runs = []
    for prepare in (None, again):
        with one_rank(config) as groups:
            runs.append(make_updates(config, groups, routings=[(), ()], prepare=prepare))
    assert differences(*runs) == []
    assert [[update.graphs for update in updates] for updates in runs] == [[2, 2], [2, 2]]


def test_evaluation_under_compile_equals_eager_and_counts_no_tokens(tmp_path):
    values = []
    for changes in ({}, LAYER):
        config = small("qwen3_moe", tmp_path, changes)
        with one_rank(config) as groups:
            step = build_step(config, groups)
            batch = read_batches(config, step, 1)[0]
            valid = normalizers_of(step, valid_tokens=30)
            tensors = {"tokens": batch.tensors["tokens"], "labels": batch.tensors["labels"]}
            values.append(step.evaluate(tensors, valid).item())
            assert not step.metrics.values
    assert values[0] == values[1]


class Loud(nn.Module):
    """A feed-forward layer that does what no graph can hold."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x):
        if self.how == "print":
            print(x.sum().item())  # line 1
        if self.how == "branch" and x.sum() > 0:  # line 2
            x = x + 1
        if self.how == "leave":
            leave_the_graph(x)  # line 3
        if self.how == "raise":
            raise ValueError("a message of its own")  # line 4
        return self.inner(x)


@torch.compiler.disable
def leave_the_graph(x):
    x.sum().tolist()


def find_line(mark):
    """Where `Loud` carries a mark."""
    lines, first = inspect.getsourcelines(Loud)
    return first + next(number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}"))


@pytest.mark.parametrize(
    ("how", "mark", "reason"),
    [
        pytest.param("print", "line 1", "print", marks=pytest.mark.long),
        ("branch", "line 2", "branching"),
        ("leave", "line 3", "leave_the_graph"),
        pytest.param("raise", "line 4", "a message of its own", marks=pytest.mark.long),
    ],
)
def test_a_block_that_cannot_be_captured_is_an_error_that_names_the_line(tmp_path, capsys, how, mark, reason):
    config = small("llama3", tmp_path, CAPTURED)
    with one_rank(config) as groups:
        step = build_step(config, groups)
        block = step.model.layers[1]
        block.feed_forward = Loud(block.feed_forward, how)
        with pytest.raises(CompileFailed) as caught:
            add_gradients(step, read_batches(config, step, 1))
    assert caught.value.what.startswith("layers.1 cannot be captured as one graph: ")
    assert f'File "{__file__}", line {find_line(mark)}, in forward' in caught.value.why
    assert reason in str(caught.value)
    assert "compile.mode eager" in caught.value.do
    assert caught.value.exit_code == 1


class ForkedLoss(nn.Module):
    def forward(self, hidden, weight, labels, valid_tokens):
        return hidden.sum() if labels.sum() > 0 else weight.sum()


def test_a_loss_that_cannot_be_captured_says_so_too():
    loss = CompiledLoss(ForkedLoss(), CountingBackend("eager"))
    with pytest.raises(CompileFailed, match=r"the loss cannot be captured as one graph.*\n.*in forward"):
        loss(torch.ones(3), torch.ones(3), torch.ones(3), None)


def test_other_errors_pass_through_with_their_cause():
    cause, error = KeyError("deep"), ValueError("shallow")
    with pytest.raises(ValueError, match="shallow") as caught, explained("a block"):
        raise error from cause
    assert caught.value is error and caught.value.__cause__ is cause


def test_layer_mode_with_explicit_sharding_is_refused_before_anything_starts(capsys):
    words = ["train", "llama3_debugmodel", "--compile.mode", "layer", "--parallelism.fsdp", "graph"]
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert "compile.mode is layer and parallelism.fsdp is graph" in shown
    assert "--parallelism.fsdp auto" in shown


def test_components_that_are_named_twice_or_not_at_all_are_refused(capsys):
    words = ["train", "llama3_debugmodel", "--compile.mode", "layer", "--compile.components"]
    assert main([*words, "loss", "loss"]) == 2
    assert "lists each thing to compile once" in capsys.readouterr().err

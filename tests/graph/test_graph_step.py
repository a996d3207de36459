"""The whole step as one graph: the same bits as op by op, every node with its facts, and a text a person can read."""

from collections import Counter

import pytest
import torch

from monograph.annotate import Direction, Role
from monograph.axes import Group
from monograph.errors import ConfigError
from monograph.graph.tags import has_tag, tag_of
from monograph.parallel.groups import fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from tests.execute.updates import normalizers_of
from tests.kit.capture import prepare

CPU = torch.device("cpu")
RECIPES = ("llama3_debugmodel", "qwen3_debugmodel", "qwen3_debugmodel_moe", "deepseek_v3_debugmodel")
SHOWN = (("qwen3_debugmodel", "float32"), ("qwen3_debugmodel", "bfloat16"))
"""In `make test`, with tied embeddings, whose two gradients have to be added in one order; tests/steps compares the
other models there."""


def shallow(recipe, mode, layers=2, compute="float32"):
    config = load_recipe(recipe)
    return config.replace(
        model=config.model.replace(n_layers=layers),
        training=config.training.replace(compute_dtype=compute, local_batch_size=2, seq_len=32),
        compile=config.compile.replace(mode=mode),
    )


def make_batch(seed, length=32):
    generator = torch.Generator().manual_seed(seed)
    tokens, labels = (torch.randint(0, 250, (2, length), generator=generator) for _ in range(2))
    return {"tokens": tokens, "labels": labels, "positions": tokens * 0, "documents": tokens * 0}


def captured(recipe, mesh, rank, layers=3):
    """The graph that one rank of a fake mesh captures."""
    with fake_groups(mesh, rank, CPU) as groups:
        return prepare(shallow(recipe, "graph", layers), groups, make_batch(0)).capture()


@pytest.mark.parametrize(
    ("recipe", "compute"),
    [
        pytest.param(recipe, compute, marks=[] if (recipe, compute) in SHOWN else pytest.mark.long)
        for recipe in RECIPES
        for compute in ("float32", "bfloat16")
    ],
)
def test_the_graph_computes_the_bits_of_eager_mode_as_it_comes(recipe, compute):
    with joined_groups(Mesh(), CPU) as groups:
        eager, graph = (build_step(shallow(recipe, mode, compute=compute), groups) for mode in ("eager", "graph"))
        for seed in (0, 1):
            losses = [step(make_batch(seed), normalizers_of(step, valid_tokens=60)) for step in (eager, graph)]
            assert torch.equal(*losses)
        for name, parameter in eager.parameters.items():
            assert torch.equal(parameter.grad, graph.parameters[name].grad), name
        assert eager.metrics.values.keys() == graph.metrics.values.keys()
        for name, value in eager.metrics.values.items():
            assert torch.equal(value, graph.metrics.values[name]), name
        assert torch.equal(
            *(step.evaluate(make_batch(2), normalizers_of(step, valid_tokens=60)) for step in (eager, graph))
        )


def test_a_batch_of_another_shape_is_refused_by_name():
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(shallow("llama3_debugmodel", "graph"), groups)
        step(make_batch(0), normalizers_of(step, valid_tokens=60))
        with pytest.raises(ConfigError, match="does not fit the captured step") as refused:
            step(make_batch(0, length=16), normalizers_of(step, valid_tokens=60))
    assert "batch/tokens" in refused.value.why


def test_every_node_is_tagged_and_backward_knows_its_module():
    graph = captured("deepseek_v3_debugmodel", Mesh(), 0)
    assert all(has_tag(node) for node in graph.nodes)
    matmuls = [tag_of(n) for n in graph.nodes if n.target is torch.ops.aten.mm.default]
    by_module = Counter((tag.path, tag.direction) for tag in matmuls)
    for path in ("layers.1.attention.wo", "layers.2.moe.shared_experts.w1", "layers.0.feed_forward.w2"):
        assert by_module[path, Direction.FORWARD] == 1
        assert by_module[path, Direction.BACKWARD] == 2, f"{path}: a matmul for the weight and one for the input"
    regions = {tag_of(node).region for node in graph.nodes if tag_of(node).block == 1}
    assert {"dispatch", "compute", "combine"} <= regions


def test_each_slot_is_gathered_and_scattered_under_its_own_name():
    graph = captured("qwen3_debugmodel", Mesh(dp_shard=2), 1)
    roles = Counter(
        (tag_of(node).role, tag_of(node).slot)
        for node in graph.nodes
        if "all_gather_into_tensor" in str(node.target) or "reduce_scatter_tensor" in str(node.target)
    )
    slots = {spec.name for spec in graph.inputs if spec.kind == "state"}
    for slot in slots:
        uses = 2 if slot == "embedding.weight" else 1  # tied: read as embedding and as output
        assert roles[Role.PARAM_ALL_GATHER, slot] == uses
        assert roles[Role.GRAD_REDUCE_SCATTER, slot] == uses
    assert sum(roles.values()) == 2 * (len(slots) + 1)


def test_equal_blocks_are_printed_once():
    first = captured("qwen3_debugmodel_moe", Mesh(dp_shard=2, tp=2, ep=2), 0, layers=3)
    heads = [line for line in first.text().splitlines() if " block" in line and not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [
        "forward block 0",
        "forward blocks 1..2",
        "backward block 2",
        "backward block 1",
        "backward block 0",
    ]
    assert heads[1].startswith("forward blocks 1..2: like 0")
    assert heads[3].startswith("backward block 1: like 2")
    assert f"{Group.EP.value})  <<" in first.text()


@pytest.mark.long
def test_another_number_of_layers_is_another_digest():
    digests = {captured("llama3_debugmodel", Mesh(), 0, layers=n).digest() for n in (1, 2)}
    assert len(digests) == 2


def test_evaluation_is_captured_when_the_step_is_built(monkeypatch):
    """Not at the first validation, minutes later, where memory may be short and ranks may be apart."""
    config = shallow("llama3_debugmodel", "graph", layers=1)
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config.replace(validator=config.validator.replace(interval=1)), groups)
        monkeypatch.setattr("monograph.run.capture", None)
        assert step.evaluate(make_batch(0), normalizers_of(step)).isfinite()


def test_a_step_that_was_built_for_no_evaluation_says_which_setting_asks_for_one():
    config = shallow("llama3_debugmodel", "graph", layers=1)
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config.replace(validator=config.validator.replace(interval=0)), groups)
        with pytest.raises(ConfigError, match=r"validator\.interval is 0"):
            step.evaluate(make_batch(0), normalizers_of(step))

"""The step can be captured: as one graph with make_fx on fake tensors, and by torch.compile without breaks."""

import pytest
import torch
from torch._dynamo import config as dynamo_config
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from tests.kit.small import SMALL, batch, build

KINDS = [
    ("llama3", torch.float32),
    ("qwen3", torch.bfloat16),
    ("deepseek_v3", torch.float32),
    ("deepseek_v3", torch.bfloat16),
]


def build_shallow(family: str, dtype: torch.dtype):
    """One block of every kind: capturing takes long."""
    config = SMALL[family](mask="document", n_layers=2 if family == "deepseek_v3" else 1)
    if family == "deepseek_v3":
        config.moe.n_experts = 4
        config.moe.router.n_groups = config.moe.router.top_groups = 2
    return build(config, dtype=dtype)


def make_inputs(seed: int = 0):
    tokens, labels = batch(seed=seed)
    positions = (torch.arange(32) % 20).expand(2, 32).contiguous()
    documents = (torch.arange(32) // 20).expand(2, 32).contiguous()
    return tokens, labels, torch.tensor(50), positions, documents


def run_step(model, parameters, buffers, tokens, labels, valid_tokens, positions, documents):
    """Loss, metrics and gradients as a function of tensors only."""
    parameters = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    out = torch.func.functional_call(
        model,
        {**parameters, **buffers},
        (tokens, labels, valid_tokens),
        {"positions": positions, "documents": documents},
    )
    return out.loss, out.metrics, torch.autograd.grad(out.objective, list(parameters.values()))


@pytest.mark.parametrize("family, dtype", [*KINDS[:3], pytest.param(*KINDS[3], marks=pytest.mark.long)])
def test_a_captured_step_equals_the_eager_one_for_other_routing_too(family, dtype):
    model = build_shallow(family, dtype)
    state = {name: p.detach() for name, p in model.named_parameters()}, dict(model.named_buffers())

    def step(*args):
        return run_step(model, *args)

    fake_mode = FakeTensorMode(shape_env=ShapeEnv())
    fake = pytree.tree_map(lambda t: fake_mode.from_tensor(t, static_shapes=True), (*state, *make_inputs()))
    with fake_mode:
        graph = make_fx(step)(*fake)
    for seed in (0, 1):
        expected, found = (pytree.tree_leaves(run(*state, *make_inputs(seed))) for run in (step, graph))
        assert len(expected) == len(found)
        assert all(a is b is None or torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    targets = [str(node.target) for node in graph.graph.nodes]
    assert not any("complex" in name for name in targets)
    if dtype == torch.bfloat16:
        assert not any("_local_scalar_dense" in name for name in targets), (
            "the grouped kernel needs nothing on the host"
        )


@pytest.mark.parametrize("family, dtype", [KINDS[1], pytest.param(*KINDS[2], marks=pytest.mark.long)])
def test_dynamo_captures_the_model_in_one_piece(family, dtype):
    model = build_shallow(family, dtype)
    tokens, labels, valid_tokens, positions, documents = make_inputs()
    context = {"positions": positions, "documents": documents}
    expected = model(tokens, labels, valid_tokens, **context)
    expected.loss.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    torch._dynamo.reset()
    with dynamo_config.patch(capture_scalar_outputs=True):  # the loop over experts reads its counts
        found = torch.compile(model, backend="aot_eager", fullgraph=True)(tokens, labels, valid_tokens, **context)
        found.loss.backward()
    assert torch.equal(found.loss, expected.loss)
    assert found.metrics.keys() == expected.metrics.keys()
    for name, value in expected.metrics.items():
        assert torch.equal(found.metrics[name], value), name
    for before, parameter in zip(grads, model.parameters(), strict=True):
        assert torch.equal(parameter.grad, before)

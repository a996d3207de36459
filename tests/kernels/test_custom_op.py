"""Declaring an op: what a user gets for one declaration, and what is refused."""

import json
import sys

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.errors import ConfigError
from monograph.graph.allowed_ops import find_target, is_allowed, name_of
from monograph.graph.file import graph_from_data, graph_to_data, parse_graph_file
from monograph.graph.verify_read import check_read_graph
from monograph.kernels.catalog import CUSTOM_OPS, find_decompositions, find_kernel_ops
from monograph.kernels.check_op import OpCheckError, check_op
from monograph.kernels.custom_op import custom_op
from monograph.models.feed_forward import FeedForward
from monograph.parallel.groups import fake_groups
from monograph.train.layout import plan_run_mesh
from tests.graph.captured_ops import Case, make_config
from tests.kit.capture import prepare

numbers = iter(range(1000))


def declare(arguments="(Tensor x) -> Tensor", **settings):
    """An op with a name that no other has: torch keeps ops as long as the process lives."""
    settings.setdefault("reference", lambda x: x.relu().square())
    settings.setdefault("examples", lambda: [(torch.linspace(-2, 3, 12).view(3, 4).t(),)])
    return custom_op(f"monograph_test::op{next(numbers)}{arguments}", **settings)


def declare_relu2(**settings):
    return declare(backward=lambda grad, x: grad * 2 * x.relu(), save=("x",), **settings)


def declare_cube():
    """An op whose backward is an op too."""
    backward = declare("(Tensor grad, Tensor x) -> Tensor", reference=lambda grad, x: 3 * grad * x * x)
    return declare(reference=lambda x: x**3, backward=backward, save=("x",)), backward


def test_one_declaration_gives_an_op_with_a_gradient_that_passes_all_checks():
    relu2 = declare_relu2()
    assert check_op(relu2) == {"kernel": "has no kernel: the reference runs on every device"}
    x = torch.tensor([-1.0, 3.0], requires_grad=True)
    assert torch.autograd.grad(relu2(x).sum(), x)[0].tolist() == [0.0, 6.0]
    assert relu2.name == str(relu2.op.name()) and relu2.name.startswith("monograph_test::")


def test_shapes_on_fake_tensors_come_from_the_reference_where_none_are_declared():
    halves = declare("(Tensor x, int dim) -> (Tensor, Tensor)", reference=lambda x, dim: x.chunk(2, dim))
    found = halves.op(torch.empty(4, 6, device="meta"), 1)
    assert [(value.shape, value.stride()) for value in found] == [((4, 3), (3, 1))] * 2


def test_backward_gets_arguments_numbers_and_results_in_the_declared_order():
    seen = []

    def backward(grad, factor, x, root):
        seen.append((factor, root))
        return grad * factor / (2 * root), None

    op = declare(
        "(Tensor x, Tensor index, float factor) -> (Tensor, Tensor)",
        reference=lambda x, index, factor: (x.sqrt() * factor, x.sqrt()),
        backward=backward,
        save=("factor", "x"),
        save_outputs=(1,),
        internal=(1,),
        examples=lambda: [(torch.rand(5) + 1, torch.arange(5), 3.0)],
    )
    assert check_op(op).keys() == {"kernel"}
    x = torch.full((2,), 4.0, requires_grad=True)
    result = op(x, torch.arange(2), 3.0)
    assert result.tolist() == [6.0, 6.0], "a result for backward alone is not returned"
    assert torch.autograd.grad(result.sum(), x)[0].tolist() == [0.75, 0.75]
    assert seen[-1][0] == 3.0 and seen[-1][1].tolist() == [2.0, 2.0]


def test_a_users_op_may_stand_in_graphs_and_graph_files():
    relu2 = declare_relu2()
    name = name_of(relu2.op)
    assert relu2.op in CUSTOM_OPS and is_allowed(name) and find_target(name) is relu2.op
    assert not is_allowed("monograph_test.unknown.default")


def test_a_step_with_a_users_op_is_captured_written_and_read_back(monkeypatch):
    (cube, cube_backward), honest = declare_cube(), FeedForward.forward
    monkeypatch.setattr(FeedForward, "forward", lambda self, x: cube(honest(self, x)))
    config = make_config(Case("llama3", "1"))
    with fake_groups(plan_run_mesh(config, 1), 0, torch.device("cpu")) as groups:
        prepared = prepare(config, groups)
        graph, facts = prepared.capture("step"), prepared.facts
    assert {cube.op, cube_backward.op} <= {node.target for node in graph.nodes}
    read = graph_from_data(parse_graph_file(json.dumps(graph_to_data(graph)).encode()), {})
    check_read_graph(read, facts, is_forward=False)


def test_forward_and_backward_are_captured_as_one_node_each():
    cube, cube_backward = declare_cube()

    def step(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(cube(x).sum(), x)

    nodes = make_fx(step, tracing_mode="fake")(torch.ones(3)).graph.nodes
    found = [node.target for node in nodes if str(node.target).startswith("monograph_test")]
    assert found == [cube.op, cube_backward.op]


def test_a_compiler_gets_the_reference_only_where_the_declaration_says_so():
    kept, taken_apart = declare(), declare(decompose=True)
    assert kept.op not in find_decompositions()
    assert find_decompositions()[taken_apart.op] is taken_apart.reference


def test_a_kernel_named_by_reference_is_imported_when_it_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "kernels_of_a_user.py").write_text("def relu2(x):\n    return 'launched'\n")
    monkeypatch.syspath_prepend(tmp_path)
    relu2 = declare(kernel="kernels_of_a_user:relu2")
    assert "kernels_of_a_user" not in sys.modules
    relu2(torch.ones(3))
    assert "kernels_of_a_user" not in sys.modules, "a CPU needs the reference only"
    assert relu2 in find_kernel_ops() and relu2.launcher("x") == "launched"


def test_dynamo_traces_a_call_without_a_graph_break():
    relu2 = declare_relu2()
    x = torch.randn(5, requires_grad=True)
    found = torch.compile(lambda x: relu2(x) + 1, backend="aot_eager", fullgraph=True)(x)
    expected = relu2(x) + 1
    assert torch.equal(found, expected)
    assert all(map(torch.equal, torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), x)))


def test_saved_values_can_be_recomputed_by_activation_checkpointing():
    relu2 = declare_relu2()
    x = torch.randn(5, requires_grad=True)
    result = torch.utils.checkpoint.checkpoint(lambda x: relu2(x.sin()), x, use_reentrant=False)
    expected = relu2(x.sin())
    assert all(map(torch.equal, torch.autograd.grad(result.sum(), x), torch.autograd.grad(expected.sum(), x)))


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"fake": lambda x: x.new_empty(x.shape[0])}, "fake tensors differ"),
        ({"fake": lambda x: x.new_empty(x.shape, dtype=torch.float64)}, "fake tensors differ"),
        ({"fake": lambda x: torch.empty_like(x)}, "fake tensors differ"),
        ({"reference": lambda x: x, "contiguous": False}, "opcheck fails"),
        ({"reference": lambda x: x.add_(1)}, "opcheck fails"),
        ({"backward": lambda grad, x: grad * x.relu(), "save": ("x",)}, "backward is not its gradient"),
        ({"backward": lambda grad: (grad, grad)}, "backward is not its gradient"),
    ],
)
def test_a_declaration_that_is_wrong_is_caught(settings, complaint):
    with pytest.raises(OpCheckError, match=complaint):
        check_op(declare(**settings))


def test_an_op_that_is_different_on_every_call_is_caught():
    calls = iter(range(1000))
    op = declare(reference=lambda x: x + next(calls), fake=lambda x: x.new_empty(x.shape))
    with pytest.raises(OpCheckError):
        check_op(op)


@pytest.mark.parametrize(
    ("schema", "settings", "complaint"),
    [
        ("no schema", {}, "namespace::name"),
        ("monograph_test::a.b(Tensor x) -> Tensor", {}, "namespace::name"),
        ("monograph_test::unclosed(Tensor x -> Tensor", {}, "valid schema"),
        ("swiglu(Tensor x, Tensor up) -> Tensor", {}, "give every op a name"),
        ("monograph_test::bad1(Tensor x) -> Tensor", {"save": ("y",)}, "there is no 'y'"),
        ("monograph_test::bad2(Tensor x) -> Tensor", {"save_outputs": (1,)}, "there is no 1"),
        ("monograph_test::bad3(Tensor x, int n) -> Tensor", {"gradients": ("n",)}, "no gradient for n"),
    ],
)
def test_what_cannot_be_declared_is_refused_with_the_reason(schema, settings, complaint):
    with pytest.raises(ConfigError) as error:
        custom_op(schema, reference=lambda x, *_: x, backward=lambda grad, *_: grad, **settings)
    assert complaint in str(error.value)


def test_an_op_without_examples_cannot_be_checked():
    with pytest.raises(ConfigError, match="no example inputs"):
        check_op(declare(examples=None))

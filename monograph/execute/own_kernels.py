"""The kernels of our own ops that a step will launch, built before it runs: from the forms of their arguments alone.

On a GPU a step without compiled parts spends most of its first run on building them. An artifact has them built.
"""

import importlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph.compat.capture import fake_tensors
from monograph.graph.encode import GraphFileError, decode_form, encode_form
from monograph.graph.forms import Form, form_of
from monograph.graph.query import value_of
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.kernels.choose import HAS_TRITON
from monograph.kernels.cross_entropy import CROSS_ENTROPY, IGNORED
from monograph.kernels.forms import PLAIN_FORMS
from monograph.kernels.gate import GATE, GATE_BACKWARD
from monograph.kernels.launch import only_built
from monograph.kernels.rotation import ROTATE

_UNKNOWN_SIZE = 1024
"""What a size that the data decides is taken for: kernels only ask whether it is a multiple of sixteen."""
_OPS = {GATE: "gate", GATE_BACKWARD: "gate_backward", ROTATE: "rotate", CROSS_ENTROPY: "cross_entropy"}
UPDATE = "update"
"""The optimizer's kernel, called with the form of a gradient."""


class Call(NamedTuple):
    """A kernel and what it is called with: tensors by their forms, and switches."""

    name: str
    args: tuple[Form | bool, ...]


def find_calls(graph: StepGraph, *, is_compiled: bool = False) -> list[Call]:
    """Every distinct call of an op of ours; where a compiler follows, only of those that it does not replace."""
    found: dict[Call, None] = {}
    for node in graph.nodes:
        if node.target in _OPS and not (is_compiled and node.target in PLAIN_FORMS):
            args: Any = torch.fx.node.map_arg(node.args, lambda each: form_of(value_of(each)))
            found[Call(_OPS[node.target], tuple(args))] = None
    return list(found)


def find_updates(graph: StepGraph) -> list[Call]:
    """The optimizer's calls: one for every dtype in which gradients leave the step."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    found = (form_of(value_of(node)) for spec, node in pairs if spec.kind is OutputKind.GRADIENT and node is not None)
    device = torch.device("cuda")
    return [Call(UPDATE, (Form(dtype, (1,), (1,), device),)) for dtype in dict.fromkeys(form.dtype for form in found)]


def build_calls(calls: Iterable[Call]) -> None:
    """Build the kernels, or find them where Triton keeps them; nothing without a GPU."""
    if not (HAS_TRITON and torch.cuda.is_available()):
        return
    builders = find_builders()
    with only_built(), fake_tensors():
        for name, args in calls:
            builders[name](*(make_tensor(arg) if isinstance(arg, Form) else arg for arg in args))


def find_builders() -> dict[str, Callable[..., Any]]:
    """Name -> what launches the kernel."""
    kernels: Any = importlib.import_module("monograph.kernels.on_gpu")
    optimizer: Any = importlib.import_module("monograph.kernels.update_on_gpu")

    def update(gradient: Tensor) -> None:
        flat = [torch.empty(_UNKNOWN_SIZE, dtype=dtype, device="cuda") for dtype in (torch.float32, gradient.dtype)]
        moments = [torch.empty(_UNKNOWN_SIZE, device="cuda") for _ in range(2)]
        numbers = [torch.empty((), device="cuda") for _ in range(6)]
        optimizer.update(*flat, *moments, *numbers, beta1=0.0, beta2=0.0, eps=0.0)

    return {
        "gate": kernels.gate,
        "gate_backward": kernels.gate_backward,
        "rotate": kernels.rotate,
        "cross_entropy": lambda logits, targets: kernels.cross_entropy(logits, targets, IGNORED),
        UPDATE: update,
    }


def make_tensor(form: Form) -> Tensor:
    """A tensor of this form on a GPU, fake where such a mode is on."""
    shape, strides = (
        [size if isinstance(size, int) else _UNKNOWN_SIZE for size in sizes] for sizes in (form.shape, form.strides)
    )
    return torch.empty_strided(shape, strides, dtype=form.dtype, device="cuda")


def calls_to_data(calls: Iterable[Call]) -> list[Any]:
    """Calls as objects that JSON can write."""
    return [[call.name, [encode_form(arg) if isinstance(arg, Form) else arg for arg in call.args]] for call in calls]


def calls_from_data(data: Any) -> list[Call]:
    """What `calls_to_data` wrote; anything else is an error."""
    names = {*_OPS.values(), UPDATE}
    try:
        found = [
            Call(name, tuple(arg if isinstance(arg, bool) else decode_form(arg) for arg in args)) for name, args in data
        ]
    except (TypeError, ValueError) as error:
        raise GraphFileError(f"this is no list of calls: {error}") from None
    if any(call.name not in names or not all(isinstance(arg, Form | bool) for arg in call.args) for call in found):
        raise GraphFileError("a call of something that is no kernel of ours")
    return found

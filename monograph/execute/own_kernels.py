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
from monograph.graph.promises import find_gradients
from monograph.graph.query import value_of
from monograph.graph.signature import InputKind
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
"""The optimizer's kernel, called with the forms of a parameter and its gradient."""
_KINDS: dict[str, tuple[type, ...]] = {
    "gate": (Form, Form),
    "gate_backward": (Form, Form, Form),
    "rotate": (Form, Form, Form, bool, bool),
    "cross_entropy": (Form, Form),
    UPDATE: (Form, Form),
}
"""What each is called with."""


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
    """The optimizer's calls: one for every pair of dtypes that a parameter and its gradient have."""
    stored = {spec.name: spec.dtype for spec in graph.inputs if spec.kind is InputKind.STATE}
    found = dict.fromkeys((stored[slot], form_of(value_of(node)).dtype) for slot, node in find_gradients(graph))
    return [Call(UPDATE, tuple(Form(dtype, (1,), (1,), torch.device("cuda")) for dtype in both)) for both in found]


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

    def update(parameter: Tensor, gradient: Tensor) -> None:
        dtypes = (parameter.dtype, gradient.dtype, parameter.dtype, parameter.dtype)
        flat = [torch.empty(_UNKNOWN_SIZE, dtype=dtype, device="cuda") for dtype in dtypes]
        numbers = [torch.empty((), device="cuda") for _ in range(6)]
        optimizer.update(*flat, *numbers, beta1=0.0, beta2=0.0, eps=0.0)

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
    try:
        found = [
            (name, tuple(arg if isinstance(arg, bool) else decode_form(arg) for arg in args)) for name, args in data
        ]
        kinds = [(name, tuple(map(type, args))) for name, args in found]
        if any(_KINDS.get(name) != types for name, types in kinds):
            raise GraphFileError("a call of something that is no kernel of ours")
    except (TypeError, ValueError) as error:
        raise GraphFileError(f"this is no list of calls: {error}") from None
    return [Call(name, args) for name, args in found]

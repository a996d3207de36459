"""Declare a custom op in one place: schema, CPU reference, GPU kernel, fake shapes, gradient and example inputs.

Our own ops and a user's are declared by the same function, and everything that asks about ops (capture, graph files,
compilers, kernels built ahead, tests) reads the one registry that it fills.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.config.references import import_reference
from monograph.errors import ConfigError
from monograph.kernels.launch import on_device
from monograph.kernels.op_gradient import make_gradient

OURS = "monograph"
"""The namespace of a schema that names none."""
Examples = Callable[[], Iterable[tuple[Any, ...]]]
"""Returns tuples of arguments, with tensors on the CPU."""


@dataclass(frozen=True, eq=False)
class CustomOp:
    """A declared op. Calling it computes the result with its gradient; graphs contain `op`."""

    op: Any
    """The overload that is a graph's node; torch.ops has it too."""
    reference: Callable[..., Any]
    """The same in torch's ops."""
    kernel: Callable[..., Any] | str | None
    """What launches it on a GPU, or "module:function" of it; None where the reference runs on every device."""
    gradient: Any
    """The autograd.Function that calls the op; None for an op without gradient."""
    gradients: tuple[str, ...]
    """The arguments that get a gradient."""
    examples: Examples | None
    """Arguments to try it with."""
    decompose: bool
    """Whether a compiler is given the reference instead."""
    prebuild: bool
    """Whether its kernels are built before the first step and taken along by artifacts."""

    def __call__(self, *args: Any) -> Any:
        """The result of the op on these arguments, all by position; autograd knows its gradient."""
        return self.op(*args) if self.gradient is None else self.gradient.apply(*args)

    @property
    def name(self) -> str:
        """As graphs and artifacts say it: with its namespace, unless that is ours."""
        return str(self.op.name()).removeprefix(f"{OURS}::")

    @property
    def launcher(self) -> Callable[..., Any] | None:
        """What launches the kernel, imported now if it was named by a reference; None without a kernel."""
        return import_reference(self.kernel) if isinstance(self.kernel, str) else self.kernel


CUSTOM_OPS: dict[Any, CustomOp] = {}
"""Every declared op, by the overload that graphs contain: ours, and those of users whose modules are imported."""
_libraries: dict[str, torch.library.Library] = {}


def custom_op(
    schema: str,
    *,
    reference: Callable[..., Any],
    kernel: Callable[..., Any] | str | None = None,
    fake: Callable[..., Any] | None = None,
    backward: Callable[..., Any] | None = None,
    save: Sequence[str] = (),
    save_outputs: Sequence[int] = (),
    gradients: Sequence[str] | None = None,
    internal: Sequence[int] = (),
    examples: Examples | None = None,
    contiguous: bool = True,
    decompose: bool = False,
    prebuild: bool = False,
) -> CustomOp:
    """Declare an op, which is one node of a captured graph and may be one kernel on a GPU.

    Example::

        relu2 = custom_op(
            "my_package::relu2(Tensor x) -> Tensor",
            reference=lambda x: x.relu().square(),
            kernel="my_package.relu2_on_gpu:relu2",
            backward=lambda grad, x: grad * 2 * x.relu(),
            save=("x",),
            examples=lambda: [(torch.randn(4, 8),)],
        )
        y = relu2(x)  # graphs contain relu2.op

    Args:
        schema: "namespace::name(arguments) -> results", as torch.library writes it; without namespace it is ours.
        reference: computes the op in torch's ops: on a CPU, and on every device if there is no `kernel`.
        kernel: the function that launches it on a GPU, or "module:function", imported when it first runs.
        fake: returns empty tensors like the results (`x.new_empty(...)`); without it the reference runs on fake ones.
        backward: called with the results' gradients, then the saved values; returns one gradient for each of
            `gradients`, a tensor if there is only one.
        save: names of arguments that backward reads.
        save_outputs: numbers of results that backward reads.
        gradients: names of arguments that get a gradient; by default every argument that is a tensor.
        internal: numbers of results for backward alone: calling the op does not return them, `op` does.
        examples: returns tuples of arguments for `check_op`.
        contiguous: whether the reference's results are made contiguous, as a kernel writes them.
        decompose: whether a compiler is given the reference instead of the op, to fuse it with its neighbours.
        prebuild: whether kernels can be built from tensors on the meta device before they run; for a `kernel` that
            launches through `monograph.kernels.launch` only.
    """
    op = _register(schema, _make_contiguous(reference) if contiguous else reference, kernel, fake)
    wanted = _find_gradients(op, gradients) if backward else ()
    gradient = make_gradient(op, backward, save, save_outputs, wanted, internal) if backward else None
    CUSTOM_OPS[op] = CustomOp(op, reference, kernel, gradient, wanted, examples, decompose, prebuild)
    return CUSTOM_OPS[op]


def _register(
    schema: str,
    reference: Callable[..., Any],
    kernel: Callable[..., Any] | str | None,
    fake: Callable[..., Any] | None,
) -> Any:
    """Tell torch about the op; the overload that it makes."""
    namespace, name = _find_names(schema)
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    library = _libraries[namespace]
    _define(library, schema.rpartition("::")[2], f"{namespace}::{name}")
    library.impl(name, reference, "CompositeExplicitAutograd" if kernel is None else "CPU")
    if kernel is not None:
        library.impl(name, _make_launcher(kernel), "CUDA")
    torch.library.register_fake(f"{namespace}::{name}", fake or reference, lib=library)
    return getattr(getattr(torch.ops, namespace), name).default


def _find_names(schema: str) -> tuple[str, str]:
    """Namespace and name of an op from its schema."""
    full, bracket, _ = schema.partition("(")
    namespace, _, name = full.strip().rpartition("::")
    namespace = namespace or OURS
    if not bracket or not name.isidentifier() or not namespace.isidentifier():
        raise ConfigError(
            f"custom_op({schema!r:.80})",
            why="a schema is 'namespace::name(arguments) -> results', and an overload has no name of its own",
            do="write it like 'my_package::scale(Tensor x, float factor) -> Tensor'",
        )
    return namespace, name


def _define(library: torch.library.Library, schema: str, name: str) -> None:
    """Tell torch the schema; what it cannot read, or has already, is refused."""
    try:
        library.define(schema)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ConfigError(f"custom_op({name!r})", why=lines[0], do="give every op a name and a valid schema") from error


def _find_gradients(op: Any, named: Sequence[str] | None) -> tuple[str, ...]:
    """The arguments that get a gradient."""
    tensors = tuple(each.name for each in op._schema.arguments if "Tensor" in str(each.type))
    unknown = sorted(set(named or ()) - set(tensors))
    if unknown:
        raise ConfigError(
            f"custom_op({op.name()!r}): no gradient for {', '.join(unknown)}",
            why="only arguments of type Tensor get one",
            do=f"choose from: {', '.join(tensors)}",
        )
    return tensors if named is None else tuple(named)


def _make_contiguous(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference with results as a kernel would write them."""

    def compute(*args: Any) -> Any:
        found = reference(*args)
        return tuple(map(_contiguous, found)) if isinstance(found, tuple | list) else _contiguous(found)

    return compute


def _contiguous(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) else value


def _make_launcher(kernel: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return what torch calls on a GPU: the kernel, with the GPU of its tensors as the current one. A kernel may launch
    without a device argument, and threads of libraries begin on the first GPU."""
    loaded: list[Callable[..., Any]] = []

    def start(*args: Any) -> Any:
        if not loaded:
            loaded.append(import_reference(kernel) if isinstance(kernel, str) else kernel)
        values = (value for arg in args for value in (arg if isinstance(arg, list | tuple) else (arg,)))
        device = next((value.device for value in values if isinstance(value, Tensor) and value.is_cuda), None)
        with nullcontext() if device is None else on_device(device):
            return loaded[0](*args)

    return start

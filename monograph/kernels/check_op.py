"""Does a custom op keep its promises: reference, kernel, fake shapes, gradient and capture, on its example inputs.

For our own ops and for a user's: `check_op(my_op)` raises OpCheckError with the first promise that is broken, and
returns what could not be checked here, with the reason.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.errors import ConfigError, MonographError
from monograph.kernels.custom_op import CustomOp

TOLERANCES: Mapping[torch.dtype, tuple[float, float]] = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-4),
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (2e-2, 2e-2),
}
"""Dtype -> relative and absolute difference that rounding may make between a kernel and its reference."""

OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
"""What torch itself checks."""


class OpCheckError(MonographError):
    """A custom op does not do what its declaration says."""


def check_op(op: CustomOp) -> dict[str, str]:
    """Check everything that can be checked on this machine; the checks that were skipped, each with its reason.

    Example::

        skipped = check_op(relu2)
        # {"kernel": "no CUDA device"} on a laptop
    """
    return {name: reason for name, check in CHECKS.items() if (reason := check(op))}


def check_schema(op: CustomOp) -> str:
    """torch.library.opcheck: nothing is written or aliased that the schema does not say, fake tensors agree."""
    if any(result.alias_info for result in op.op._schema.returns):
        return "its result is one of its arguments, which torch.library.opcheck does not take"
    skipped = ""
    for args in list_examples(op):
        tests: tuple[str, ...] = OPCHECKS
        if any(arg.dtype.itemsize == 1 and arg.is_floating_point() for arg in _tensors(args)):
            tests, skipped = OPCHECKS[1:], "test_schema of torch.library.opcheck does not take float8 arguments"
        try:
            torch.library.opcheck(op.op, args, test_utils=tests)
        except Exception as error:
            raise _broken(op, "torch.library.opcheck fails", _first_line(error)) from error
    return skipped


def check_fake(op: CustomOp) -> str:
    """Shapes, dtypes, strides and devices on fake tensors are those of real results."""
    for args in list_examples(op):
        real = _describe(op.op(*args))
        fake = _describe(_trace(op, args)[1])
        if real != fake:
            raise _broken(op, "fake tensors differ from real ones", f"results are {real}, on fake tensors {fake}")
    return ""


def check_capture(op: CustomOp) -> str:
    """A captured graph contains the op as one node, and computes the same bits."""
    for args in list_examples(op):
        graph, _ = _trace(op, args)
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function" and _is_op(node.target)]
        if calls != [op.op]:
            raise _broken(op, "it is not one node of a graph", f"make_fx gave {', '.join(map(str, calls))}")
        if not _are_equal(graph(*_tensors(args)), op.op(*args)):
            raise _broken(op, "the captured graph gives other bits", "the op may depend on something beside its inputs")
    return ""


def check_gradient(op: CustomOp) -> str:
    """The gradient is that of the op, by finite differences in fp64; skipped for an op without one."""
    if op.gradient is None:
        return "declares no backward"
    names = [argument.name for argument in op.op._schema.arguments]
    for args in list_examples(op):
        wide = [_to_fp64(arg, needs_grad=name in op.gradients) for name, arg in zip(names, args, strict=False)]
        try:
            torch.autograd.gradcheck(op, wide, fast_mode=False)
        except Exception as error:
            raise _broken(op, "its backward is not its gradient", _first_line(error)) from error
    return ""


def check_kernel(op: CustomOp) -> str:
    """The kernel gives what the reference gives, within rounding; skipped without a kernel or a GPU."""
    if op.kernel is None:
        return "has no kernel: the reference runs on every device"
    if not torch.cuda.is_available():
        return "no CUDA device"
    for args in list_examples(op):
        wanted = _flatten(op.op(*args))
        found = _flatten(op.op(*(arg.cuda() if isinstance(arg, Tensor) else arg for arg in args)))
        for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
            rtol, atol = TOLERANCES.get(other.dtype, (0.0, 0.0))
            if other.dtype.itemsize == 1 and other.is_floating_point():  # nothing compares float8 but its bits
                one, other = (each.view(torch.uint8) for each in (one, other))
            try:
                torch.testing.assert_close(one.cpu(), other, rtol=rtol, atol=atol, equal_nan=True)
            except AssertionError as error:
                raise _broken(op, f"result {index} of the kernel is not the reference's", _all_lines(error)) from error
            if one.stride() != other.stride():
                raise _broken(op, f"result {index} of the kernel is laid out differently", f"strides {one.stride()}")
    return ""


CHECKS: Mapping[str, Callable[[CustomOp], str]] = {
    "fake": check_fake,
    "schema": check_schema,
    "capture": check_capture,
    "gradient": check_gradient,
    "kernel": check_kernel,
}
"""Each returns why it was skipped, or an empty text."""


def list_examples(op: CustomOp) -> list[tuple[Any, ...]]:
    """The op's example arguments, at least one tuple."""
    found = list(op.examples()) if op.examples else []
    if not found:
        raise ConfigError(
            f"{op.op.name()} has no example inputs",
            why="an op is checked on the arguments that its declaration gives",
            do="declare it with custom_op(..., examples=lambda: [(torch.randn(4, 8),)])",
        )
    return found


def _trace(op: CustomOp, args: tuple[Any, ...]) -> tuple[torch.fx.GraphModule, Any]:
    """The op captured on fake tensors, and the fake results."""
    fakes: list[Any] = []

    def call(*tensors: Tensor) -> Any:
        left = iter(tensors)
        result = op.op(*(next(left) if isinstance(arg, Tensor) else arg for arg in args))
        fakes.append(result)
        return result

    return make_fx(call, tracing_mode="fake")(*_tensors(args)), fakes[0]


def _is_op(target: Any) -> bool:
    """Whether a node computes something: taking one of several results does not."""
    return getattr(target, "__name__", "") != "getitem"


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    return [arg for arg in args if isinstance(arg, Tensor)]


def _flatten(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple | list) else [result]


def _describe(result: Any) -> list[Any]:
    return [
        (tuple(value.shape), value.dtype, value.stride(), str(value.device)) if isinstance(value, Tensor) else value
        for value in _flatten(result)
    ]


def _are_equal(one: Any, other: Any) -> bool:
    pairs = zip(_flatten(one), _flatten(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


def _to_fp64(arg: Any, *, needs_grad: bool) -> Any:
    if not isinstance(arg, Tensor) or not arg.is_floating_point():
        return arg
    return arg.detach().double().clone().requires_grad_(needs_grad)


def _all_lines(error: Exception) -> str:
    """How many elements differ, where and by how much: torch says so in lines of its own."""
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _broken(op: CustomOp, what: str, why: str) -> OpCheckError:
    return OpCheckError(f"{op.op.name()}: {what}", why=why, do="compare its reference, kernel, fake and backward")

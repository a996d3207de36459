"""All custom ops: importing this file declares ours; those of users come from their modules.

To a compiler most of ours are torch's ops, which it fuses with their neighbours. The loss is not: our kernel is faster
than what the compiler makes, and only an op can write over its logits (docs/decisions/0008).
"""

from collections.abc import Callable, Iterator
from typing import Any

from monograph.compat.compiler import add_decompositions
from monograph.kernels import (
    attention,
    chunked_cross_entropy,
    clamped_swiglu,
    embedding_rows,
    expert_bias,
    expert_rows,
    experts,
    float8,
    float8_amax,
    float8_grouped,
    float8_norm,
    float8_shards,
    float8_swiglu,
    grouped_matmul,
    heads,
    matmul_swiglu,
    norm,
    random,
    rope,
    swiglu,
    wide,
)
from monograph.kernels.custom_op import CUSTOM_OPS, CustomOp

__all__ = ["CUSTOM_OPS", "MODULES", "find_decompositions", "find_kernel_ops", "is_declared", "register_decompositions"]

MODULES = (
    attention,
    chunked_cross_entropy,
    clamped_swiglu,
    embedding_rows,
    expert_bias,
    expert_rows,
    experts,
    float8,
    float8_amax,
    float8_grouped,
    float8_norm,
    float8_shards,
    float8_swiglu,
    grouped_matmul,
    heads,
    matmul_swiglu,
    norm,
    random,
    rope,
    swiglu,
    wide,
)
"""The files that declare ours."""


def is_declared(name: str) -> bool:
    """Whether `name`, as graphs write it (`my_package.scale.default`), is an op declared with `custom_op`."""
    return any(str(op) == name for op in CUSTOM_OPS)


def find_kernel_ops() -> Iterator[CustomOp]:
    """The ops that have a kernel for GPUs, as far as they are declared now."""
    return (each for each in CUSTOM_OPS.values() if each.kernel is not None)


def find_decompositions() -> dict[Any, Callable[..., Any]]:
    """Op -> its reference, where a compiler is given that instead."""
    return {op: each.reference for op, each in CUSTOM_OPS.items() if each.decompose}


def register_decompositions() -> None:
    """Let Inductor take our ops apart. Doing it twice changes nothing."""
    add_decompositions(find_decompositions())

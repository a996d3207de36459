"""The values of a graph that was read from a file are what its operators yield: checked on the meta device.

A file only says what a node yields. Here every operator runs on tensors without memory, once for all nodes that are
equal, and must accept its arguments and yield what the file says. unbacked symbols have example
numbers (`formulas.Numbers`), and nodes that depend on them are checked for two sets of these.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from monograph.compat.capture import is_op
from monograph.compat.ops import ATEN, READ_SIZE
from monograph.graph.formulas import Numbers, parse_formula
from monograph.graph.query import value_of
from monograph.graph.refuse import GraphError, broken
from monograph.graph.shape_rules import find_rule
from monograph.graph.tensor_meta import ScalarMeta, SymIntMeta, TensorMeta
from monograph.graph.verify_kernels import do_shapes_fit

_META = torch.device("meta")
_NUMBERS: dict[str, Any] = {"int": 1, "float": 1.0, "bool": False}
"""Stand-ins for numbers whose value nothing depends on while shapes are checked."""
_LISTS = (list, tuple)


def check_forms(nodes: Sequence[Node]) -> None:
    """Run every operator on shapes alone; refuse one that does not accept its arguments or yields something else."""
    check_symbols(nodes)
    first, second = (Numbers(nodes, first=first, step=step) for first, step in ((16, 3), (23, 5)))
    checked = FormChecker(first)
    for node in nodes:
        checked.check(node)
    if any(first.found):
        dynamic = FormChecker(second)
        for node in nodes:
            if any(_symbols(value_of(each)) for each in (node, *node.all_input_nodes)):
                dynamic.check(node)


def check_symbols(nodes: Sequence[Node]) -> None:
    """A size that only a running step knows was read from data before it shapes anything."""
    known: set[str] = set()
    for node in nodes:
        form = value_of(node)
        symbols = _symbols(form)
        if any(sum(isinstance(size, str) for size in each.shape) > 1 for each in _tensors(form)):
            raise broken(node, "two sizes of a value depend on data", why="then its memory has no bound")
        if node.target is READ_SIZE:
            source = value_of(node.args[0]) if node.args and isinstance(node.args[0], Node) else None
            is_number = (
                isinstance(source, TensorMeta)
                and source.dtype in (torch.int32, torch.int64)
                and math.prod(_plain(source)) == 1
            )
            if not is_number or not isinstance(form, SymIntMeta) or [form.formula] != list(symbols):
                raise broken(node, "a size is not read from one integer", why="sizes are counts of rows")
            known |= symbols
        elif not symbols <= known:
            missing = ", ".join(sorted(symbols - known)[:5])
            raise broken(
                node,
                f"a value has the size {missing}, which nothing before it has read from data",
                why="sizes are read once, by a node that everything they shape comes after",
            )


class FormChecker:
    """Runs operators on the meta device, where symbols have the given numbers."""

    def __init__(self, numbers: Numbers) -> None:
        self.numbers = numbers
        self._right: set[Any] = set()

    def check(self, node: Node) -> None:
        """Refuse a node that does not yield what it is said to."""
        if node.op != "call_function" or node.target is READ_SIZE:
            return
        try:
            self._check(node)
        except GraphError:
            raise
        except Exception as error:  # whatever an operator raises, it does not accept its arguments
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
            raise broken(node, "an operator does not accept its arguments", why=reason) from None

    def _check(self, node: Node) -> None:
        key = self._key((node.target, node.args, tuple(node.kwargs.items()), value_of(node)))
        if key in self._right:
            return
        if is_op(node.target):
            self._check_shapes(node)
        said = value_of(node)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda each: self.make(value_of(each)))
        found = self.yields(node.target, args, kwargs)
        if not self._is_same(said, found):
            raise broken(
                node,
                f"an operator yields {found!r:.120}, and the file says {said!r:.120}",
                why="the memory a step needs and its kernels are decided by what the file says",
            )
        self._right.add(key)

    def yields(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What a call yields, computed on values that have no memory."""
        args, kwargs = _without_device(args), _without_device(kwargs)
        rule = find_rule(target) if is_op(target) else None
        if rule is None and is_op(target) and "device" in _names(target):
            args, kwargs = _bind(target, args, kwargs)  # one that makes a tensor would make it on the host
        with torch.no_grad():
            return (rule or target)(*args, **kwargs)

    def _check_shapes(self, node: Node) -> None:
        """What operators would not refuse by themselves, or only after they have made a list without end."""
        given = dict(zip(_names(node.target), node.args, strict=False)) | node.kwargs
        shapes = {name: self._shape(value) for name, value in given.items()}
        if not do_shapes_fit(node.target, shapes):
            raise broken(node, "shapes do not fit together", why="the kernel would read beyond the end of a tensor")
        count = _count_parts(node.target, shapes)
        said = value_of(node)
        if count is not None and (not isinstance(said, _LISTS) or len(said) != count):
            raise broken(node, f"a value falls into {count} parts", why=f"the file says {said!r:.120}")

    def make(self, form: Any) -> Any:
        """A value of this form that has no memory."""
        if isinstance(form, TensorMeta):
            shape, strides = ([self.numbers.of(size) for size in sizes] for sizes in (form.shape, form.strides))
            return torch.empty_strided(shape, strides, dtype=form.dtype, device=_META)
        if isinstance(form, SymIntMeta):
            return self.numbers.of(form.formula)
        if isinstance(form, ScalarMeta):
            return _NUMBERS[form.kind]
        return None if form is None else [self.make(item) for item in form]

    def _shape(self, value: Any) -> Any:
        form = value_of(value) if isinstance(value, Node) else value
        if isinstance(form, TensorMeta):
            return tuple(self.numbers.of(size) for size in form.shape)
        return self.numbers.of(form.formula) if isinstance(form, SymIntMeta) else form

    def _key(self, value: Any) -> Any:
        """Equal for calls that need to be checked once."""
        if isinstance(value, Node):
            return self._key(value_of(value))
        if isinstance(value, _LISTS):
            return type(value), *map(self._key, value)
        if isinstance(value, TensorMeta):
            sizes = tuple(self.numbers.of(size) for size in (*value.shape, *value.strides))
            return value.dtype, sizes, value.device.type
        if isinstance(value, SymIntMeta):
            return "size", self.numbers.of(value.formula)
        return type(value), value

    def _is_same(self, said: Any, found: Any) -> bool:
        if isinstance(said, TensorMeta):
            shape = tuple(self.numbers.of(size) for size in said.shape)
            return isinstance(found, Tensor) and found.dtype == said.dtype and tuple(found.shape) == shape
        if isinstance(said, _LISTS):
            return isinstance(found, _LISTS) and len(said) == len(found) and all(map(self._is_same, said, found))
        if isinstance(said, SymIntMeta):
            return type(found) is int and found == self.numbers.of(said.formula)
        return found is None if said is None else type(found).__name__ == said.kind


def _names(target: Any) -> list[str]:
    return [argument.name for argument in target._schema.arguments]


def _bind(target: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with the meta device in place of any other, or of none."""
    place = _names(target).index("device")
    if place < len(args):
        return (*args[:place], _META, *args[place + 1 :]), kwargs
    return args, {**kwargs, "device": _META}


def _count_parts(target: Any, given: dict[str, Any]) -> int | None:
    """How many values an operator makes of one, for those that could make any number of them."""
    if target not in (ATEN.unbind.int, ATEN.split.Tensor):
        return None
    size = given["self"][given.get("dim", 0)]
    return size if target is ATEN.unbind.int else max(1, -(-size // given["split_size"]))


def _symbols(form: Any) -> frozenset[str]:
    """The symbols in the sizes of a value."""
    if isinstance(form, _LISTS):
        return frozenset().union(*map(_symbols, form))
    sizes = (*form.shape, *form.strides) if isinstance(form, TensorMeta) else ()
    texts = [size for size in sizes if isinstance(size, str)]
    texts += [form.formula] if isinstance(form, SymIntMeta) else []
    return frozenset(symbol for text in texts for symbol in parse_formula(text).symbols)


def _tensors(form: Any) -> list[TensorMeta]:
    return [each for each in (form if isinstance(form, _LISTS) else [form]) if isinstance(each, TensorMeta)]


def _plain(form: TensorMeta) -> list[int]:
    """The sizes of a tensor; one that is not known counts as none."""
    return [size if isinstance(size, int) else 0 for size in form.shape]


def _without_device(value: Any) -> Any:
    """Arguments with every device replaced by the meta device."""
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, dict):
        return {name: _without_device(item) for name, item in value.items()}
    return type(value)(map(_without_device, value)) if isinstance(value, _LISTS) else value


def find_bytes(form: Any, numbers: Numbers) -> list[int]:
    """The bytes of each of a node's values."""
    forms = form if isinstance(form, _LISTS) else [form]
    return [
        math.prod(numbers.of(size) for size in each.shape) * each.dtype.itemsize if isinstance(each, TensorMeta) else 0
        for each in forms
    ]

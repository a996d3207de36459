"""The gradient of a custom op, from a function that computes it: an autograd.Function per op."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function

from monograph.errors import ConfigError


def make_gradient(
    op: Any,
    backward: Callable[..., Any],
    save: Sequence[str],
    save_outputs: Sequence[int],
    gradients: Sequence[str],
    internal: Sequence[int],
) -> type[Function]:
    """A Function that calls the op, saves arguments and results, and returns what `backward` makes of them."""
    names = [argument.name for argument in op._schema.arguments]
    _check_declaration(op, names, save, [*save_outputs, *internal])
    tensors = [name for name in save if _is_tensor(op, name)]
    kept, places = [names.index(name) for name in tensors], [names.index(name) for name in gradients]
    numbers = {name: names.index(name) for name in save if name not in tensors}
    count = len(op._schema.returns)
    returned = [number for number in range(count) if number not in internal]

    def run_forward(ctx: Any, *args: Any) -> Any:
        found = op(*args)
        results = found if count > 1 else (found,)
        ctx.save_for_backward(*(args[index] for index in kept), *(results[index] for index in save_outputs))
        ctx.numbers = {name: args[index] for name, index in numbers.items()}
        ctx.count = len(args)
        return tuple(results[number] for number in returned) if len(returned) > 1 else results[returned[0]]

    def run_backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # once: activation checkpointing recomputes for every access
        inputs = dict(zip(tensors, saved, strict=False)) | ctx.numbers
        found = backward(*grads, *(inputs[name] for name in save), *saved[len(tensors) :])
        wanted = found if isinstance(found, tuple | list) else (found,)
        values: list[Tensor | None] = [None] * ctx.count
        for index, value in zip(places, wanted, strict=True):
            values[index] = value
        return tuple(values)

    title = "".join(part.capitalize() for part in op.name().partition("::")[2].split("_"))
    methods = {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    return type(title, (Function,), methods)


def _check_declaration(op: Any, names: Sequence[str], save: Sequence[str], results: Sequence[int]) -> None:
    """Refuse names and numbers that the schema does not have."""
    count = len(op._schema.returns)
    unknown = [name for name in save if name not in names] + [each for each in results if not 0 <= each < count]
    if unknown:
        raise ConfigError(
            f"custom_op({op.name()!r}): there is no {unknown[0]!r}",
            why=f"it takes {', '.join(names)} and returns {count} value{'s' if count > 1 else ''}, counted from 0",
            do="save arguments by name, results by number",
        )


def _is_tensor(op: Any, name: str) -> bool:
    kind = next(str(argument.type) for argument in op._schema.arguments if argument.name == name)
    return kind in ("Tensor", "Optional[Tensor]")

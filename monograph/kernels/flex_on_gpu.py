"""FlexAttention on a GPU, op by op: compiled when a kind of attention first runs, and never a second time.

Uncompiled, torch would compute and save the scores of all queries and keys, which FlexAttention is there to avoid.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from monograph.compat.capture import fake_tensors, trace_function
from monograph.compat.compiler import CompiledCode, compile_graph
from monograph.compat.flex import BlockTables, FlexGraphs
from monograph.errors import MonographError

Form = tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
"""Shape, stride and dtype of every tensor."""


class FlexRecompiled(MonographError):
    """A kind of attention would have to be compiled once more."""


class CompiledFlex:
    """One direction of a kind of attention as compiled code, for tensors of one form.

    Chunks along the batch have another batch size than whole micro-batches; nothing else may change.
    """

    def __init__(self, name: str, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.name, self.function = name, function
        self.codes: dict[Form, CompiledCode] = {}

    def __call__(
        self, *values: Any, graphs: FlexGraphs, tensors: tuple[tuple[Tensor, ...], ...], scale: float
    ) -> tuple[Tensor, ...]:
        """`values` are tensors, the last one the tables; as the function takes them."""
        *leading, tables = values
        flat = [*leading, *tables, *(each for given in tensors for each in given)]
        form = find_form(flat)
        if form not in self.codes:
            self.check_form(form, len(leading))
            sizes = len(leading), *map(len, tensors)
            self.codes[form] = self.compile(flat, sizes, graphs, scale)
        return tuple(self.codes[form](*flat))

    def check_form(self, form: Form, leading: int) -> None:
        """Refuse tensors that differ from those of earlier calls in more than the batch size."""
        for known in self.codes:
            before, now = ([shape[1:] for shape, _, _ in each[:leading]] for each in (known, form))
            dtypes = [[dtype for _, _, dtype in each[:leading]] for each in (known, form)]
            if before != now or dtypes[0] != dtypes[1]:
                raise FlexRecompiled(
                    f"FlexAttention of kind {self.name} was compiled for {list(known[0][0])} and gets "
                    f"{list(form[0][0])}",
                    why="every sequence length would be compiled anew, which takes a minute each",
                    do="give all batches one sequence length; for texts of any length use a CPU or "
                    "--model.attention.kernel auto",
                )

    def compile(self, flat: Sequence[Tensor], sizes: tuple[int, ...], graphs: FlexGraphs, scale: float) -> CompiledCode:
        """Code for tensors like these, of which `sizes` come first, belong to the score, and to the mask."""
        leading, scored, _ = sizes
        start = leading + len(BlockTables._fields)

        def function(*given: Tensor) -> list[Tensor]:
            tables = BlockTables(*given[leading:start])
            tensors = given[start : start + scored], given[start + scored :]
            return list(self.function(*given[:leading], tables, graphs, *tensors, scale=scale))

        with fake_tensors() as mode, torch.no_grad():
            fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device) for x in flat]
            module = trace_function(function, fakes, mode)
            return compile_graph(module, fakes, mode, for_artifact=False)


def find_form(values: Sequence[Tensor]) -> Form:
    """What code is compiled for."""
    return tuple((tuple(value.shape), value.stride(), value.dtype) for value in values)

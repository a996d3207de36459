"""A function of a rank, run for all ranks in lockstep: at every collective it waits until all ranks have reached it.

The function is run from its beginning once more for every collective, with the results of those before it: it must
compute the same again, and may change nothing before its last collective.
"""

from collections.abc import Callable, Sequence
from typing import Any

from monograph.compat.dispatch import TorchDispatchMode
from monograph.compat.ops import WAIT_TENSOR
from monograph.verify.simulate.collectives import COLLECTIVES, SimulationError, run_collective
from monograph.verify.simulate.coordinates import Coordinates, Partition
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.precision import in_fp64


class _Reached(Exception):
    """A collective whose result is not known yet."""

    def __init__(self, op: Any, args: tuple[Any, ...]) -> None:
        super().__init__(str(op))
        self.op, self.given = op, args


class _KnownResults(TorchDispatchMode):
    """Collectives give the results that are known, in order."""

    def __init__(self, results: Sequence[Any]) -> None:
        super().__init__()
        self.results = iter(results)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is WAIT_TENSOR:
            return args[0]
        if func not in COLLECTIVES:
            return func(*args, **(kwargs or {}))
        for result in self.results:
            return result.clone()
        raise _Reached(func, args)


def run_everywhere(function: Callable[[int], Any], part: Partition, coordinates: Coordinates) -> SharedValue:
    """What the function gives on every rank; it depends on the class of a rank in `part`, and on collectives."""
    results: list[SharedValue] = []
    while True:
        part = coordinates.join([part, *(result.part for result in results)])
        given, reached = [], []
        for first in part.firsts:
            try:
                with in_fp64(), _KnownResults([result.at(first) for result in results]):
                    given.append(function(first))
            except _Reached as stop:
                reached.append(stop)
        if not reached:
            return SharedValue(part, given)
        if given or len({(stop.op, *map(str, stop.given[1:])) for stop in reached}) > 1:
            raise SimulationError("ranks disagree on the next collective of an update")
        arguments = [stop.given for stop in reached]
        results.append(SharedValue(*run_collective(reached[0].op, part, arguments, coordinates)))

"""Runs the units of one pipeline stage inside of a model's own `forward`.

The model calls its units one after the other, as ever. Units of other stages are not run: in place of what they hand
on stand `AbsentValue`s, which may be passed from unit to unit and used for nothing else. Where the stage begins, the
carry from the stage before takes their place; where it ends, its own carry is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from monograph.errors import ConfigError
from monograph.models.model import Model, Unit, UnitCall
from monograph.plurals import counted


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, by its place among all of them."""

    number: int
    count: int
    units: tuple[str, ...]
    """Paths, in order."""

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.count - 1


class AbsentValue:
    """Stands for a value that another stage computes; whoever uses it gets an error that names it."""

    def __init__(self, name: str, unit: str) -> None:
        self.name, self.unit = name, unit

    def refuse(self) -> NoReturn:
        raise ConfigError(
            f"'{self.name}' of the unit {self.unit} is used on another pipeline stage than the one that computes it",
            why="only what a unit's `carry` names goes to the next stage, to the first unit there and as it is",
            do="compute with it inside of a unit, add it to the carry of all units it passes, or choose other stages: "
            "parallelism.pipeline_stages",
        )

    @classmethod
    def __torch_function__(cls, _func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> NoReturn:
        flat = [*args, *(kwargs or {}).values()]
        nested = [each for value in flat for each in (value if isinstance(value, list | tuple) else [value])]
        next(each for each in nested if isinstance(each, AbsentValue)).refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self.refuse()

    def _operator(self, *_others: Any) -> NoReturn:
        self.refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = _operator
    __rmatmul__ = __neg__ = __getitem__ = __iter__ = __len__ = __bool__ = __float__ = __pow__ = _operator


class StageRunner:
    """Runs a stage's units with `call`; afterwards `carry` is what the stage hands on, by name."""

    def __init__(self, model: Model, stage: Stage, call: UnitCall, carry: Mapping[str, Tensor]) -> None:
        units = model.units()
        self.stage, self.call, self.given = stage, call, carry
        self.places = {model.get_submodule(unit.path): place for place, unit in enumerate(units)}
        self.units = units
        self.first = next(place for place, unit in enumerate(units) if unit.path == stage.units[0])
        self.last = self.first + len(stage.units) - 1
        self.before: tuple[Any, ...] = ()
        """What the unit before handed on, as far as that was an absent value."""
        self.next_place = 0
        self.carry: dict[str, Tensor] = {}

    def __call__(self, module: nn.Module, *args: Any) -> Any:
        place = self.places.get(module)
        if place is None:
            return self.call(module, *args)  # which refuses what is no unit
        unit = self.units[place]
        if place != self.next_place:
            raise ConfigError(
                f"forward calls the unit {unit.path} where {self.find_next()} should come",
                why="a pipeline runs the units of a model in the order that units() gives them",
                do="call each unit once, in the order of units()",
            )
        self.next_place = place + 1
        if place == self.first and not self.stage.is_first:
            args = self.take_over(unit, args)
        elif self.before:
            self.check_handed_on(unit, args)
        if not self.first <= place <= self.last:
            return self.skip(place)
        result = self.call(module, *args)
        self.before = ()
        if place == self.last and not self.stage.is_last:
            return self.hand_on(unit, result)
        return result

    def find_next(self) -> str:
        return self.units[self.next_place].path if self.next_place < len(self.units) else "no other"

    def check_handed_on(self, unit: Unit, args: Sequence[Any]) -> None:
        """The leading arguments of a unit are what the unit before handed on, and nothing else."""
        for index, value in enumerate(self.before):
            if index >= len(args) or args[index] is not value:
                raise ConfigError(
                    f"the unit {unit.path} does not get '{value.name}' as the unit {value.unit} handed it on",
                    why="a pipeline sends the carry of a unit to the next one as it is",
                    do=f"pass it on unchanged as argument {index} of {unit.path}; compute with it inside of a unit",
                )

    def take_over(self, unit: Unit, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of the stage's first unit, with the carry that came from the stage before."""
        self.check_handed_on(unit, args)
        given = tuple(self.given[value.name] for value in self.before)
        return (*given, *args[len(given) :])

    def skip(self, place: int) -> Any:
        """What a unit of another stage returns here."""
        unit = self.units[place]
        if place == len(self.units) - 1:
            self.before = ()
            return torch.zeros((), dtype=torch.float32, device=find_device(self.given, self.carry))
        return self.absent(unit)

    def absent(self, unit: Unit) -> Any:
        values = tuple(AbsentValue(name, unit.path) for name in unit.carry)
        self.before = values
        results = (*values, *(None for _ in range(unit.others)))
        return results if len(results) > 1 else results[0]

    def hand_on(self, unit: Unit, result: Any) -> Any:
        """Take the stage's carry; what follows in `forward` sees it as absent."""
        results = result if isinstance(result, tuple) else (result,)
        wanted = len(unit.carry) + unit.others
        if len(results) != wanted or not all(isinstance(value, Tensor) for value in results[: len(unit.carry)]):
            raise ConfigError(
                f"the unit {unit.path} returns {counted(len(results), 'result')} and units() says "
                f"{len(unit.carry)} carried ({', '.join(unit.carry)}) and {unit.others} others",
                why="a pipeline stage ends there, and its carry is sent to the next one",
                do="name all that goes to the next unit in carry=, and count the rest in others=",
            )
        self.carry = dict(zip(unit.carry, results, strict=False))
        absent = self.absent(unit)
        others = results[len(unit.carry) :]
        return (*self.before, *others) if len(results) > 1 else absent


def find_device(*tensors: Mapping[str, Tensor]) -> torch.device:
    """Where the carry is."""
    return next(value.device for named in tensors for value in named.values())

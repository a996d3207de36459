"""Passes from outside of this package: what they must declare, and where they run among ours. Loads without torch.

A class in `passes.extra` has been imported by whoever named it: a person on the command line, or a recipe. Here it is
only looked at.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monograph.config.references import name_of
from monograph.errors import ConfigError, find_nearest
from monograph.passes.options import PassOptions
from monograph.passes.order import ORDER, PASS, PassEntry

DOCSTRING_PARTS = ("Before:", "After:", "Why:")
"""What the docstring of a pass shows, in this order, after a sentence on what it does."""
DEFAULT_SUCCESSOR = "mark_regions"
"""A pass without `before` and `after` runs before this one, which begins to prepare code for a compiler."""


def check_extra(kind: Any) -> None:
    """Refuse a class that is not a pass, or does not declare what every pass declares."""
    if not is_pass(kind):
        raise refuse_other(kind)
    reference = name_of(kind)
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise ConfigError(f"passes.extra has {reference}", why=f"it does not define {', '.join(missing)}")
    if problem := find_docstring_problem(kind):
        raise ConfigError(
            f"passes.extra has {reference}",
            why=problem,
            do="describe it as the others are: see `monograph passes --markdown`",
        )
    for field in ("before", "after"):
        names = getattr(kind, field)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            raise ConfigError(
                f"{reference}.{field} is {names!r}",
                why="it is a tuple of names of passes",
                do=f'{field} = ("recompute",)',
            )
    check_options(kind, reference)


def refuse_other(kind: Any) -> ConfigError:
    """The error about something that was named as a pass and is none."""
    return ConfigError(
        f"{name_of(kind) if callable(kind) else repr(kind)} is not a pass",
        why=f"it does not derive from {PASS.replace(':', '.')}",
        do=f"class {getattr(kind, '__name__', 'MyPass')}(Pass): ...",
    )


def is_pass(kind: Any) -> bool:
    """Whether a class derives from Pass; by name, because a class that does has loaded it, and others should not."""
    return isinstance(kind, type) and PASS in [f"{each.__module__}:{each.__qualname__}" for each in kind.__mro__[1:]]


def find_docstring_problem(kind: type) -> str:
    """What is missing in the docstring of a pass: a first sentence, then Before, After and Why, in this order."""
    text = inspect.cleandoc(kind.__doc__ or "")
    if not text:
        return "it has no docstring"
    first = text.splitlines()[0]
    if not first.endswith((".", ";")) or len(first) <= 20:
        return f"its docstring does not begin with a sentence on what it does: {first!r}"
    missing = [part for part in DOCSTRING_PARTS if part not in text]
    if missing:
        return f"its docstring has no {', '.join(missing)}"
    indices = [text.index(part) for part in DOCSTRING_PARTS]
    return (
        "" if indices == sorted(indices) else f"its docstring does not have {', '.join(DOCSTRING_PARTS)} in this order"
    )


def check_options(kind: Any, reference: str) -> None:
    """Refuse a Config that is not of the kind for passes, or that cannot be made without arguments."""
    if not (isinstance(kind.Config, type) and issubclass(kind.Config, PassOptions)):
        raise ConfigError(
            f"{reference}.Config does not derive from Pass.Config",
            why="its fields become flags",
            do="class Config(Pass.Config): ...",
        )
    try:
        kind.Config()
    except TypeError as error:
        raise ConfigError(f"{reference}.Config has an option without a default", why=str(error)) from None


def list_names(extra: Any) -> list[str]:
    """The names of the passes in a value of `passes.extra` that was not checked yet."""
    return [kind.name() for kind in extra if is_pass(kind)] if isinstance(extra, tuple) else []


def has_options(kind: Any) -> bool:
    """Whether a pass brings options of its own."""
    return kind.Config is not PassOptions


@functools.cache
def build_order(extra: tuple[Any, ...]) -> Mapping[str, PassEntry]:
    """Name -> entry of our passes and these, in the order they run."""
    kinds = {kind.name(): kind for kind in extra}
    gaps = find_gaps(kinds)
    found: dict[str, PassEntry] = {}
    for index, name in enumerate([*ORDER, ""]):
        found |= {each: make_entry(kinds[each]) for each, gap in gaps.items() if gap == index}
        if name:
            found[name] = ORDER[name]
    return found


def make_entry(kind: Any) -> PassEntry:
    """What is known about an extra pass: it runs by default, with numerics fast if it does not keep every bit."""
    return PassEntry(name_of(kind), kind.Config, default="on" if kind.bitwise else "fast", loaded=kind)


def check_names(extra: Sequence[Any], taken: Iterable[str]) -> None:
    """Refuse two passes of one name, a name that flags use for something else, and an unknown one in before/after."""
    owners = {**dict.fromkeys(taken, "a field of passes"), **dict.fromkeys(ORDER, "one of monograph's own")}
    for kind in extra:
        if kind.name() in owners:
            raise ConfigError(
                f"passes.extra has {name_of(kind)}, which is called {kind.name()}",
                why=f"so is {owners[kind.name()]}",
                do="rename the class",
            )
        owners[kind.name()] = name_of(kind)
    known = [*ORDER, *(kind.name() for kind in extra)]
    for kind in extra:
        for field in ("before", "after"):
            for name in getattr(kind, field):
                if name not in known:
                    near = find_nearest(name, known)
                    raise ConfigError(
                        f"{name_of(kind)}.{field} has {name!r}",
                        why="there is no pass of that name",
                        do=f"did you mean {near}?" if near else "see `monograph passes`",
                    )


def find_gaps(kinds: Mapping[str, Any]) -> dict[str, int]:
    """Extra pass -> the index in ORDER it runs just before, in an order that fits `before` and `after` of all.

    As early as `after` allows; without it as late as `before` allows; without either before the compile passes.
    """
    ours = list(ORDER)
    earlier = find_predecessors(kinds)
    names = sort_extra(kinds, earlier)
    later = {name: [other for other in kinds if name in earlier[other]] for name in kinds}
    last: dict[str, int] = {}
    for name in reversed(names):  # the index of the first of our passes that must come after it
        direct = [ours.index(each) for each in kinds[name].before if each in ORDER]
        last[name] = min([*direct, *(last[each] for each in later[name])], default=len(ours))
    gaps: dict[str, int] = {}
    for name in names:
        direct = [ours.index(each) + 1 for each in kinds[name].after if each in ORDER]
        first = max([*direct, *(gaps[each] for each in earlier[name])], default=None)
        if first is None:
            first = last[name] if last[name] < len(ours) else ours.index(DEFAULT_SUCCESSOR)
        if first > last[name]:
            raise ConfigError(
                f"{name} has to run after {ours[first - 1]} and before {ours[last[name]]}",
                why=f"{ours[last[name]]} runs before {ours[first - 1]}",
                do=f"change before or after of {name_of(kinds[name])}, or of an extra pass that names it",
            )
        gaps[name] = first
    return gaps


def find_predecessors(kinds: Mapping[str, Any]) -> dict[str, list[str]]:
    """Extra pass -> the extra ones that run before it, by its own `after` or by their `before`."""
    return {
        name: [other for other in kinds if other in kind.after or name in kinds[other].before]
        for name, kind in kinds.items()
    }


def sort_extra(kinds: Mapping[str, Any], earlier: Mapping[str, Sequence[str]]) -> list[str]:
    """The extra passes so that each comes after its predecessors, otherwise as they were given."""
    found: list[str] = []
    while len(found) < len(kinds):
        ready = [name for name in kinds if name not in found and all(each in found for each in earlier[name])]
        if not ready:
            rest = [name for name in kinds if name not in found]
            raise ConfigError(
                f"{' and '.join(rest)} each have to run before another of them",
                why="their before and after form a cycle",
                do="remove one of them",
            )
        found.append(ready[0])
    return found

"""Which passes run, and their options. Loads without torch: a wrong pass name is answered at once."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, TypeVar

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.config.docs import find_summary
from monograph.config.text import format_words
from monograph.errors import ConfigError, find_nearest
from monograph.passes.extra import build_order, check_extra, check_names, has_options, list_names
from monograph.passes.options import CLASSES, Numerics, PassOptions
from monograph.passes.order import ORDER, PassEntry

Kind = TypeVar("Kind", bound=type)


def with_options(kind: Kind) -> Kind:
    """Add one field to a class for every pass of ORDER that has options."""
    for name, entry in ORDER.items():
        if entry.options is not PassOptions:
            kind.__annotations__[name] = entry.options
            default = field(default_factory=entry.options, metadata={"doc": find_summary(entry.options)})
            setattr(kind, name, default)
    return kind


@dataclass(kw_only=True, slots=True)
@with_options
class PassesConfig(Configurable.Config):
    """The passes of graph mode, by name. The other fields are the options of the passes in ORDER.

    A pass in `extra` brings its options with it: they are read, assigned and replaced like the fields declared here.
    """

    decides_fields: ClassVar[tuple[str, ...]] = ("extra",)

    on: Names = ()
    """Passes to run although they are off by default; names separated by spaces or commas."""
    off: Names = ()
    """Passes to leave out; names separated by spaces or commas."""
    extra: tuple[Callable[..., Any], ...] = ()
    """Passes of your own: classes, written package.module:Class, separated by spaces or commas."""
    extra_options: dict[str, PassOptions] = field(default_factory=dict, metadata={"is_inline": True})
    """Options of the passes in `extra`, by name."""

    def __post_init__(self) -> None:
        self.on, self.off = split_names(self.on), split_names(self.off)
        self.fit_options()

    def __getattr__(self, name: str) -> Any:
        found = {} if name == "extra_options" else self.extra_options
        if name in found:
            return found[name]
        raise AttributeError(f"{type(self).__name__} has no field {name}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in getattr(self, "extra_options", ()):
            self.extra_options[name] = value
            return
        object.__setattr__(self, name, value)
        if name == "extra" and hasattr(self, "extra_options"):
            known = list_names(value)
            self.extra_options = {each: kept for each, kept in self.extra_options.items() if each in known}
            self.fit_options()

    def fit_options(self) -> None:
        """Check the passes in `extra`, and give those their default options that have none yet."""
        if not isinstance(self.extra, tuple) or not isinstance(self.extra_options, dict):
            return  # left to type checks
        for kind in self.extra:
            check_extra(kind)
        kinds: dict[str, Any] = {kind.name(): kind for kind in self.extra if has_options(kind)}  # type: ignore[attr-defined]
        check_names(self.extra, [each.name for each in dataclasses.fields(self)])
        build_order(self.extra)
        for name, options in self.extra_options.items():
            if name not in kinds or type(options) is not kinds[name].Config:
                raise ConfigError(
                    f"passes has options of {name}: {type(options).__qualname__}",
                    why="passes.extra has no pass with such options",
                    do=f"--passes.extra package.module:Class of {name}",
                )
        for name, kind in kinds.items():
            self.extra_options.setdefault(name, kind.Config())

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields or options of extra passes changed; options go with their pass."""
        names = list_names(changes.get("extra", self.extra))
        options = {**self.extra_options, **changes.pop("extra_options", {})}
        options |= {name: changes.pop(name) for name in names if name in changes}
        kept = {name: value for name, value in options.items() if name in names}
        return dataclasses.replace(self, **changes, extra_options=kept)

    @property
    def order(self) -> Mapping[str, PassEntry]:
        """The passes in the order they run: ORDER, with those in `extra` where they asked to be."""
        return build_order(self.extra)

    @property
    def has_compiler(self) -> bool:
        """Whether any part of the step is handed to a compiler."""
        return self.runs("compile_regions") or self.runs("compile_whole")

    def runs(self, name: str, numerics: Numerics = "exact") -> bool:
        """Whether the configuration lets a pass run; the mesh may still leave it nothing to do."""
        return name not in self.find_off(numerics)

    def options_of(self, name: str) -> PassOptions:
        """The options of one pass; of a pass without any, an empty set."""
        found: PassOptions = getattr(self, name) if hasattr(self, name) else PassOptions()
        return found

    def is_asked(self, name: str) -> bool:
        """Whether a pass was asked for by name or by its options, not only switched on by default."""
        return name in self.on or self.options_of(name).is_asked

    def find_off(self, numerics: Numerics) -> dict[str, str]:
        """Pass -> why it does not run, for every pass that does not."""
        off: dict[str, str] = {}
        for name, entry in self.order.items():
            if name in self.off:
                off[name] = f"passes.off has {name}"
            elif self.is_asked(name) or entry.default == "on":
                continue
            elif switch := entry.options.switch:
                value = format_words(getattr(self.options_of(name), switch))
                off[name] = f"passes.{name}.{switch} is {value or 'empty'}"
            elif entry.default == "off":
                off[name] = f"by default; --passes.on {name} runs it"
            elif CLASSES.index(numerics) < CLASSES.index(entry.default):
                off[name] = f"compile.numerics is {numerics}"
        for name, entry in self.order.items():
            missing = [other for other in entry.needs if other in off]
            instead = [other for other in entry.not_with if other not in off]
            if name not in off and (missing or instead):
                off[name] = f"it needs {missing[0]}, which is off" if missing else f"{instead[0]} runs"
        return off

    def explain_on(self, name: str) -> str:
        """The flag that makes a pass run that is off by default."""
        options = self.order[name].options
        if options.switch:
            return f"--passes.{name}.{options.switch} {options.example}"
        return f"--passes.on {name}"

    def check(self) -> None:
        for field_name in ("on", "off"):
            for name in getattr(self, field_name):
                if name not in self.order:
                    near = find_nearest(name, self.order)
                    raise ConfigError(
                        f"passes.{field_name} has {name!r}",
                        why="there is no pass of that name",
                        do=f"did you mean {near}?" if near else "see `monograph passes`",
                    )
        for name in self.on:
            if name in self.off:
                raise ConfigError(
                    f"passes.on and passes.off both have {name}", why="a pass runs or it does not", do="remove one"
                )
            options = self.options_of(name)
            if options.switch and not options.is_asked:
                raise ConfigError(
                    f"passes.on has {name} and passes.{name}.{options.switch} is not set",
                    why=f"{options.switch} says what {name} should do, and asks for the pass by itself",
                    do=f"{self.explain_on(name)} instead of --passes.on {name}",
                )
        for name in self.off:
            options = self.options_of(name)
            if options.is_asked:
                raise ConfigError(
                    f"passes.off has {name} and passes.{name}.{options.switch} is set",
                    why=f"{options.switch} asks for the pass",
                    do=f"remove {name} from passes.off, or passes.{name}.{options.switch}",
                )

    def check_asked(self, numerics: Numerics) -> None:
        """Refuse a pass that was asked for and cannot run beside the others."""
        for name, reason in self.find_off(numerics).items():
            if self.is_asked(name):
                flags = [self.explain_on(other) for other in self.order[name].needs if other not in self.off]
                leave = f"leave {self.explain_on(name)} out, or what it cannot run with"
                raise ConfigError(
                    f"{self.explain_on(name)} asks for {name}, which cannot run",
                    why=reason,
                    do=" ".join(flags) or leave,
                )
            if self.order[name].loaded and name not in self.off:
                raise ConfigError(
                    f"passes.extra has {name}, which does not run",
                    why=f"{reason}, and it is not bitwise",
                    do=f"--compile.numerics fast, {self.explain_on(name)}, or --passes.off {name}",
                )


def split_names(names: tuple[str, ...]) -> tuple[str, ...]:
    """The names in a list whose items may hold several, separated by commas; other values are left to type checks."""
    if not isinstance(names, tuple) or not all(isinstance(each, str) for each in names):
        return names
    return tuple(part.strip() for each in names for part in each.split(",") if part.strip())

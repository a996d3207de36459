"""The one rule of configuration: a component owns its Config, and the Config builds the component.

A Config is a keyword-only, slotted dataclass, so a typo in a recipe is an error at once. It may be nested in its owner:

    class Clock(Configurable):
        @dataclass(kw_only=True, slots=True)
        class Config(Configurable.Config):
            tick_seconds: float = 1.0
        def __init__(self, config: Config): ...

or stand in a file of its own and name its owner, which `build` then imports:

    @dataclass(kw_only=True, slots=True)
    class ClockConfig(Configurable.Config):
        owner: ClassVar[str] = "package.clock:Clock"
        tick_seconds: float = 1.0

    class Clock(Configurable):      # package/clock.py
        Config = ClockConfig

monograph's own Configs use the second form. Importing torch takes longer than the time we allow ourselves to reject
wrong input, so everything needed to read and check a configuration must load without it (docs/decisions/0001).
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from monograph.config.annotations import describe, find_annotations, find_excess, is_valid
from monograph.config.references import load_reference
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class BaseConfig:
    """What every Config can do: name its owner, build it, and check its own values."""

    owner: ClassVar[Any] = None
    """The class that `build` makes: the class itself, or "module:Class" to import it on demand."""
    decides_fields: ClassVar[tuple[str, ...]] = ()
    """Fields whose value decides which other fields there are: flags set them before all others."""
    is_base: ClassVar[bool] = False
    """Set by a class that only says what others have in common (not inherited): it cannot be chosen itself."""

    def build(self, **context: Any) -> Any:
        """Make the component this Config describes; `context` is what it needs besides its own settings."""
        return find_owner(type(self))(self, **context)

    def check(self) -> None:
        """Raise ConfigError when the values contradict each other. Subclasses say what they require."""

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


class Configurable:
    """A component that is described, and built, by its `Config`."""

    if TYPE_CHECKING:

        class Config(BaseConfig):
            """A base class for Configs; its constructor takes anything, so that a checker accepts other ones."""

            def __init__(self, *args: Any, **kwargs: Any) -> None: ...
    else:
        Config = BaseConfig

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        config = cls.__dict__.get("Config")
        if config is None:
            return
        check_config_class(config)
        if config.__dict__.get("owner") is None:
            config.owner = cls


def check_config_class(config: type) -> None:
    """Refuse a Config class that is not a keyword-only, slotted dataclass derived from Configurable.Config."""
    if not (isinstance(config, type) and issubclass(config, BaseConfig)):
        raise TypeError(f"{config!r} must derive from Configurable.Config")
    is_dataclass = "__dataclass_params__" in config.__dict__ and "__slots__" in config.__dict__
    if not is_dataclass or not all(field.kw_only for field in dataclasses.fields(config)):
        raise TypeError(f"{config.__qualname__} must be decorated with @dataclass(kw_only=True, slots=True)")


def find_owner(config: type[BaseConfig]) -> type:
    """The component class a Config class belongs to, imported if it is only named."""
    owner: type | None = load_reference(config.owner) if isinstance(config.owner, str) else config.owner
    if owner is None:
        raise TypeError(f"{config.__qualname__} describes settings only; it has no component to build")
    return owner


def find_children(config: BaseConfig) -> Iterator[tuple[str, Any]]:
    """Field name -> value, one level down. Configs kept in a list, tuple or dict appear one by one: `stages.0`."""
    for field in dataclasses.fields(config):
        yield from expand_field(field, getattr(config, field.name))


def expand_field(field: "dataclasses.Field[Any]", value: Any) -> Iterator[tuple[str, Any]]:
    """One field as the entries `find_children` shows for it; those of an inline dict stand beside the other fields."""
    name = field.name
    if field.metadata.get("is_inline"):
        yield from value.items()
    elif has_configs(value):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"{name}.{key}", entry) for key, entry in entries)
    else:
        yield name, value


def has_configs(value: Any) -> bool:
    """Whether a value is a container whose entries are Configs, so that each entry is a section of its own."""
    if not isinstance(value, (list, tuple, dict)) or not value:
        return False
    return all(isinstance(entry, BaseConfig) for entry in (value.values() if isinstance(value, dict) else value))


def walk_configs(config: BaseConfig, path: str = "") -> Iterator[tuple[str, BaseConfig]]:
    """The config and every config nested in it, outermost first, with dotted paths."""
    yield path, config
    for name, value in find_children(config):
        if isinstance(value, BaseConfig):
            yield from walk_configs(value, f"{path}.{name}" if path else name)


def check_config(config: BaseConfig) -> None:
    """Compare every value with its annotation, then run every nested `check`.

    Types first, so that a `check` may rely on them. Innermost first, so that the most specific complaint is shown.
    """
    if not isinstance(config, BaseConfig):
        raise ConfigError(
            f"{config!r} is not a configuration",
            why="it is an object with sections and fields",
            do="monograph.load_recipe(NAME) returns one, and so does calling a recipe of your own",
        )
    nested = list(walk_configs(config))
    for path, section in nested:
        check_types(section, path)
    for path, section in reversed(nested):
        try:
            section.check()
        except ConfigError as error:
            if path and path not in error.what:
                raise ConfigError(f"{path}: {error.what}", why=error.why, do=error.do) from None
            raise


def check_types(config: BaseConfig, path: str = "") -> None:
    """Refuse a value that is not what its field's annotation promises."""
    for name, annotation in find_annotations(type(config)).items():
        value = getattr(config, name)
        if not is_valid(value, annotation):
            excess = find_excess(value)
            raise ConfigError(
                f"{path}.{name} is {value!r:.200}" if path else f"{name} is {value!r:.200}",
                why=f"expected {describe(annotation)}" + (f": {excess}" if excess else f", got {value!r:.80}"),
            )

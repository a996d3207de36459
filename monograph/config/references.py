"""Classes and functions by name: "package.module:Outer.Inner".

Three ways to look one up, by who wrote the name. What a person types on the command line is imported: they could have
run it anyway. What our own tables name (commands, passes, the owners of Configs) is imported too, and an error in it is
our bug, with a traceback. What is read from a file is only looked up among code that is already loaded or is our own,
so that opening a configuration someone else wrote can never run their code.
"""

import importlib
import importlib.util
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from monograph.errors import ConfigError, MonographError, find_nearest
from monograph.renamed import RENAMED_CLASSES

_OURS = "monograph"


def name_of(thing: Any) -> str:
    """The name under which a class or function can be found again; ConfigError when it has none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module and name and "<" not in name and _follow(sys.modules.get(module), name) is thing:
        return f"{module}:{name}"
    raise ConfigError(
        f"{thing!r} cannot be referred to by name",
        why="a configuration is written to files, and lambdas, partials and inner functions have no name",
        do="define it at the top of a module",
    )


def import_reference(reference: str) -> Any:
    """The thing a person named, imported. An error in their module is reported with its place in their file."""
    module, name = _split(reference)
    loaded = import_named(module, reference)
    found = _follow(loaded, name)
    if found is None:
        public = [each for each in vars(loaded) if not each.startswith("_")]
        raise ConfigError(
            f"'{reference}' does not exist",
            why=f"{getattr(loaded, '__file__', None) or module} defines no {name}",
            do=f"did you mean {module}:{nearest}?" if (nearest := find_nearest(name, public)) else "",
        )
    return found


def import_named(module: str, reference: str = "") -> types.ModuleType:
    """Import a module that a person named. The working folder is searched last, and only for modules found nowhere
    else: a downloaded folder cannot replace an installed module, or give one that an installed module tries to import.
    """
    try:
        package = module.partition(".")[0]
        if package not in sys.modules and importlib.util.find_spec(package) is None and os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        return importlib.import_module(module)
    except MonographError:
        raise
    except Exception as error:
        raise ConfigError(f"'{reference or module}' cannot be imported", why=describe_exception(error)) from error


def load_reference(reference: str) -> Any:
    """What one of our own tables names, imported when it is needed: what needs torch loads after the input is read."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def import_on_call(reference: str) -> Callable[..., Any]:
    """One of our classes or functions, imported by its first call: what few runs need and takes long to import.

    The file that names it imports it `if TYPE_CHECKING`, for type checkers and go-to-definition.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return load_reference(reference)(*args, **kwargs)

    return call


def describe_exception(error: BaseException) -> str:
    """An exception in one line, with the innermost place in the code that raised it."""
    index = ""
    if isinstance(error, SyntaxError) and error.filename:
        index = f" ({error.filename}:{error.lineno})"
    elif frames := [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]:
        index = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames[-1].filename != __file__ else ""
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {message}{index}"


def find_loaded(reference: str) -> Any:
    """The thing a file names, without running any code that is not already loaded or our own."""
    module, name = _split(reference)
    if module.split(".")[0] in sys.stdlib_module_names:
        raise ConfigError(f"'{reference}' may not appear in a configuration file", why="it is not a part of monograph")
    if module == _OURS or module.startswith(f"{_OURS}."):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            raise ConfigError(f"'{reference}' does not exist", why=f"there is no module {module}") from None
    if module not in sys.modules:
        raise ConfigError(
            f"'{reference}' may not be loaded from a configuration file",
            why=f"module {module} has not been imported, and reading a file must not run code",
            do=f"if you trust it: monograph --import {module} COMMAND ... (in Python: import {module} first)",
        )
    found = _follow(sys.modules[module], name)
    if (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) != (module, name):
        new = RENAMED_CLASSES.get(reference.removeprefix(f"{_OURS}."))
        do = f"it is called {_OURS}.{new} now" if new else ""
        raise ConfigError(f"'{reference}' does not exist", why=f"module {module} defines no {name}", do=do)
    return found


def _split(reference: str) -> tuple[str, str]:
    module, colon, name = reference.partition(":")
    if not (colon and module and name):
        raise ConfigError(f"'{reference}' is not a name", do="write package.module:name")
    return module, name


def _follow(module: types.ModuleType | None, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found

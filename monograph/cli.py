"""The command line: understand the words, import what does the work, run it, and tell a person what went wrong.

Nothing here imports torch. Whatever is wrong with the words is said at once, without a traceback, with exit code 2;
a traceback is for our own bugs.
"""

import errno
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from monograph import __version__
from monograph.at_start import ended_by_ctrl_c
from monograph.commands.request import make_quiet, read_arguments, read_request
from monograph.commands.show_help import show_command, show_commands, show_fields
from monograph.commands.table import COMMANDS, LAUNCHER, Command, find_command
from monograph.commands.terminal import allow_any_text, drop_output, print_error
from monograph.config.configurable import BaseConfig
from monograph.config.references import import_named, load_reference
from monograph.errors import ConfigError, MonographError
from monograph.launch.follow import follow_launcher
from monograph.system.console import make_console, print_plain
from monograph.system.own_file import naming
from monograph.train.startup import early_phase

EXIT_INTERRUPTED = 130
"""128 + SIGINT, as shells expect."""
EXIT_BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output has left."""

STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""A disk that is full, over its quota, broken or read-only is no bug of ours."""

_HELP = ("--help", "-h")
_IMPORT = "--import"
"""Loads a module before anything else, so that files may name its classes."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    allow_any_text()
    if os.environ.get("WORLD_SIZE", "0") not in ("", "0"):
        follow_launcher()
    try:
        code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
        with naming("standard output"):
            sys.stdout.flush()
        return code
    except MonographError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        make_console(stderr=True).print("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        drop_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in STORAGE_ERRORS:
            raise
        drop_output()
        what = error.filename or "an output of this command"
        print_error(
            MonographError(f"{what} cannot be written", why=error.strerror or "", do="free disk space, and try again")
        )
        return MonographError.exit_code


def dispatch(words: list[str]) -> int:
    """Find the command the words name, read its arguments and call it."""
    imports, words = take_imports(words)
    for module in imports:
        import_named(module)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in _HELP:
        return show_commands()
    if words[0] == "--version":
        print_plain(f"monograph {__version__}, torch {_find_torch()}, Python {platform.python_version()}")
        return 0
    if words[0].startswith("-"):
        raise ConfigError(f"'{words[0]}' comes before any command", do="monograph COMMAND ...; see: monograph --help")
    if len(words) == 2 and words[1] in _HELP and any(each.name.startswith(f"{words[0]} ") for each in COMMANDS):
        return show_commands(words[0])
    command, rest = find_command(words)
    if any(word in _HELP for word in rest):
        return show_help(command, [word for word in rest if word not in _HELP])
    return run_command(command, rest, imports)


def _find_torch() -> str:
    """The version of the installed torch, which is not imported for it."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return "(not installed)"


def take_imports(words: list[str]) -> tuple[list[str], list[str]]:
    """The modules that `--import MODULE` names, anywhere on the line, and the words that are left."""
    modules: list[str] = []
    left: list[str] = []
    waiting = iter(words)
    for word in waiting:
        flag, equals, value = word.partition("=")
        if flag != _IMPORT:
            left.append(word)
            continue
        module = value if equals else next(waiting, "")
        if not module or module.startswith("-"):
            raise ConfigError(f"{_IMPORT} has no value", why="it takes a module", do=f"{_IMPORT} my_package")
        modules.append(module)
    return modules, left


def show_help(command: Command, rest: list[str]) -> int:
    """Help on a command, or on every field of the recipe that follows it."""
    if command.takes_recipe and rest:
        return show_fields(command, read_request(rest, make_options(command), is_checked=False))
    return show_command(command)


def run_command(command: Command, rest: list[str], imports: Sequence[str] = ()) -> int:
    """Read the arguments as the command declares them, then import its function and call it."""
    positional: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}
    if command.takes_recipe:
        with early_phase("config"):
            words = place_leading(command, rest)
            request = read_request(words, make_options(command), uses=command.uses)
        if request.options.pop("quiet", False):
            request = make_quiet(request)
        positional = (request.config,)
        keywords = request.options | {name: getattr(request, name) for name in command.needs}
        if "words" in keywords:
            keywords["words"] = [*keywords["words"], *(word for module in imports for word in (_IMPORT, module))]
    elif command.arguments is not None:
        needs = f"{command.name} needs {command.takes}" if command.takes else ""
        usage = f"monograph {command.name} {command.usage}"
        read = read_arguments(
            command.arguments, command.positional, rest, optional=command.optional, needs=needs, usage=usage
        )
        positional = (read,)
    elif rest:
        raise ConfigError(f"unexpected argument '{rest[0]}'", why=f"monograph {command.name} takes no arguments")
    if command.check is not None:
        check = load(command.check) if isinstance(command.check, str) else command.check
        check(*positional, **keywords)
    if command.has_ranks and keywords["ranks"] > 0 and not keywords.get("simulate"):
        if command.before_ranks:
            load(command.before_ranks)(*positional, **keywords)
        return load(LAUNCHER)([command.name, *keywords["words"]], keywords["ranks"], *positional)
    return load(command.function)(*positional, **keywords) or 0


def load(reference: str) -> Any:
    """What does the work; importing it takes seconds, in which there is nothing to interrupt but the process."""
    with ended_by_ctrl_c():
        return load_reference(reference)


def place_leading(command: Command, rest: list[str]) -> list[str]:
    """`DIR RECIPE flags` as `RECIPE --folder DIR flags`, for the commands that are written like that."""
    count = len(command.leading)
    given = rest[:count]
    if len(given) < count or any(word.startswith("-") for word in given):
        missing = command.leading[max(0, len(given) - 1)].upper()
        raise ConfigError(f"monograph {command.name} needs {missing}", do=f"monograph {command.name} {command.usage}")
    flags = [word for name, value in zip(command.leading, given, strict=True) for word in (f"--{name}", value)]
    return [*rest[count:], *flags]


def make_options(command: Command) -> BaseConfig:
    """The command's own flags, at their defaults; none for most."""
    return command.arguments() if command.arguments else BaseConfig()

"""The page on the command line, from the table of commands and the Configs that read their flags."""

from collections.abc import Iterator

from docs.generate.markdown import make_cell, make_code, make_table
from monograph.commands.table import COMMANDS, Command
from monograph.config.annotations import name_type
from monograph.config.leaves import find_leaves
from monograph.config.text import format_value


def make_commands_page() -> str:
    """Every command: usage, what it does, and its own flags."""
    return "\n".join(_make_lines()) + "\n"


def _make_lines() -> Iterator[str]:
    yield from ("# Commands", "")
    yield "`monograph COMMAND --help` prints the same. RECIPE is a name from `monograph recipes`, or a function of your"
    yield "own as `package.module:function`; every field of its configuration is a flag ([all fields](config.md))."
    yield ""
    yield from make_table(
        ("command", ""),
        [(f"[{each.name}](#{each.name.replace(' ', '-')})", make_cell(each.summary)) for each in COMMANDS],
    )
    for each in COMMANDS:
        yield from _describe(each)


def _describe(command: Command) -> Iterator[str]:
    yield from ("", f"## {command.name}", "", make_cell(command.summary), "")
    yield from ("```text", f"monograph {command.name} {command.usage}".rstrip(), "```")
    if command.arguments is None:
        return
    yield ""
    rows = []
    bare = {*command.positional, *command.leading}
    for leaf in find_leaves(command.arguments()):
        name = leaf.path.upper() if leaf.path in bare else f"--{leaf.path}"
        default = "" if leaf.path in bare else format_value(leaf.value)
        rows.append((make_code(name), make_code(name_type(leaf.annotation)), make_code(default), make_cell(leaf.doc)))
    yield from make_table(("argument", "type", "default", ""), rows)

"""Help, from the same objects that do the work: commands from their table, fields from the configuration itself."""

from monograph.commands.request import Request
from monograph.commands.table import COMMANDS, Command
from monograph.commands.terminal import print_rows, print_title
from monograph.config.annotations import name_type
from monograph.config.components import ConfigSlot, find_known, find_slots
from monograph.config.configurable import BaseConfig
from monograph.config.docs import find_summary
from monograph.config.leaves import find_leaves, find_sections
from monograph.config.text import format_value
from monograph.system.console import print_plain

_FIELD_STYLES = ("bold cyan", "dim", "green", "none")
_CLASSES = (
    "A section's class: --SECTION package.module:Class, then its fields are flags too. It starts from its own "
    "defaults; fields without a default keep the value of a field of the same name and type."
)


def show_commands(group: str = "") -> int:
    """All commands, or those that begin with one word."""
    print_title("monograph", "trains language models with the whole training step as one graph")
    print_plain("\nUsage: monograph COMMAND ...\n")
    chosen = [command for command in COMMANDS if not group or command.name.split()[0] == group]
    print_rows([(f"{each.name} {each.usage}".strip(), each.summary) for each in chosen], ("bold cyan", "none"))
    print_plain()
    print_rows(
        [
            ("monograph COMMAND --help", "Arguments of a command."),
            ("monograph train RECIPE --help", "Every field of a recipe: type, value, meaning."),
            ("monograph --import MODULE COMMAND", "Load classes of your own that files name; reading imports nothing."),
            ("monograph train deepseek_v3_debugmodel", "Try it: a small mixture of experts, on any machine."),
        ],
        ("cyan", "dim"),
    )
    return 0


def show_command(command: Command) -> int:
    """One command: usage, its own switches, and where its fields come from."""
    print_plain(f"Usage: monograph {command.name} {command.usage}".rstrip() + "\n")
    print_plain(command.summary)
    if command.arguments is not None:
        print_plain()
        print_fields(command.arguments(), command.positional)
    if command.takes_recipe:
        print_plain("\nRECIPE is a name from `monograph recipes`, or your own function as package.module:function.")
        print_plain(f"Its fields: monograph {command.name} RECIPE --help")
    return 0


def show_fields(command: Command, request: Request) -> int:
    """Every field of a recipe's configuration, section by section, with the values the flags so far have given it."""
    print_plain(f"Usage: monograph {command.name} {request.recipe} [--section.field value ...]\n")
    if command.arguments is not None:
        print_fields(command.arguments())
        print_plain()
    sections = find_sections(request.config)
    slots = {slot.path: slot for slot in find_slots(request.config) if slot.path in sections}
    leaves = find_leaves(request.config)
    for section in dict.fromkeys(leaf.section for leaf in leaves):
        print_title(section or "run", find_summary(type(sections.get(section, request.config))))
        rows = [
            (f"--{leaf.path}", name_type(leaf.annotation), format_value(leaf.value), leaf.doc)
            for leaf in leaves
            if leaf.section == section
        ]
        print_rows([*describe_class(slots.get(section)), *rows], _FIELD_STYLES)
        print_plain()
    print_plain(_CLASSES)
    return 0


def describe_class(slot: ConfigSlot | None) -> list[tuple[str, str, str, str]]:
    """The row of a section that is made to be replaced: its field is annotated with a base of what stands there."""
    if slot is None or type(slot.value) in slot.bases:
        return []
    known = ", ".join(find_known(slot.bases))
    return [(f"--{slot.path}", "class", format_value(slot.value), f"Known: {known}; or package.module:Class.")]


def print_fields(config: BaseConfig, positional: tuple[str, ...] = ()) -> None:
    """The command's own arguments."""
    rows = []
    for leaf in find_leaves(config):
        is_positional = leaf.path in positional
        name = leaf.path.upper() if is_positional else f"--{leaf.path}"
        rows.append((name, name_type(leaf.annotation), "" if is_positional else format_value(leaf.value), leaf.doc))
    print_rows(rows, _FIELD_STYLES)

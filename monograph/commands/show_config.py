"""`monograph config RECIPE`: every value, and whether a default, the recipe or a flag decided it."""

from rich.table import Table
from rich.text import Text

from monograph.commands.terminal import is_terminal
from monograph.config.configurable import BaseConfig
from monograph.config.json_form import dump_json
from monograph.config.leaves import find_sections
from monograph.config.origins import Origin
from monograph.config.text import format_fields
from monograph.system.console import make_console, print_plain

_STYLES = {"default": "dim", "recipe": "cyan", "flag": "bold yellow"}


def show_config(config: BaseConfig, *, recipe: str, origins: dict[str, Origin], json: bool = False) -> int:
    """On a terminal a table; in a pipe one `path = value  (origin)` per line; or JSON."""
    if json:
        print_plain(dump_json(config))
    elif is_terminal():
        make_console().print(make_table(config, recipe, origins), soft_wrap=False)
    else:
        lines = {path: f"{path} = {value}" for path, value in format_fields(config)}
        width = min(60, max(len(line) for line in lines.values()))
        for path, line in lines.items():
            print_plain(f"{line:<{width}}  ({origins[path]})")
    return 0


def make_table(config: BaseConfig, recipe: str, origins: dict[str, Origin]) -> Table:
    """All values, section by section; what is not a default stands out."""
    table = Table(box=None, pad_edge=False, header_style="bold", title=recipe, title_justify="left")
    table.add_column("field", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", no_wrap=True)
    section = None
    sections = find_sections(config)
    for path, value in format_fields(config):
        here, name = (path, "class") if path in sections else path.rpartition(".")[::2]
        if section is not None and here != section:
            table.add_row()
        section = here
        origin = origins[path]
        style = _STYLES[origin]
        label = Text(f"{here}." if here else "", style="dim").append(name, style="not dim bold")
        table.add_row(label, Text(value, style=style), Text(origin, style=style))
    return table

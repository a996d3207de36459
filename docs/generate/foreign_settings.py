"""The tables of docs/guides/coming_from.md: `python -m docs.generate.foreign_settings` writes them into the page."""

import re
from collections.abc import Iterator

from docs.generate.links import ROOT
from docs.generate.markdown import make_cell, make_code, make_table
from monograph.elsewhere.answer import SECTIONS
from monograph.elsewhere.rows import NOT_HERE, TRAINERS, ForeignSetting

PAGE = ROOT / "docs" / "guides" / "coming_from.md"
_TABLE = re.compile(r"(<!-- settings of (?P<trainer>[^>]+) -->\n)\n*(?:\|[^\n]*\n)*\n?")


def make_trainer_table(trainer: str) -> str:
    """All settings of one trainer, section by section."""
    rows = [_make_row(row) for rows in SECTIONS.values() for row in rows if trainer in row.trainers]
    return "\n".join(make_table((trainer, "monograph", ""), rows)) + "\n"


def _make_row(row: ForeignSetting) -> tuple[str, str, str]:
    name, note = make_code(row.name), row.note.replace("{}", "VALUE")
    if row.is_missing:
        return name, "not here", make_cell(note.removeprefix(NOT_HERE))
    choices = ", ".join(_list_choices(row))
    notes = "; ".join(part for part in (make_cell(note), choices) if part)
    return name, make_code(row.flags.removesuffix(" {}").replace("{}", "VALUE")), notes


def _list_choices(row: ForeignSetting) -> Iterator[str]:
    """Their values that are written in another way than the row says, or under another name."""
    flag = row.flags.partition(" ")[0]
    for theirs, ours in row.values.items():
        field, _, value = ours.partition(" ")
        if ours == row.flags or (field == flag and value == theirs):
            continue
        yield f"{theirs}: {make_code(value if field == flag and '--' not in value else ours)}"


def fill_page(text: str) -> str:
    """The page with every table as it should be."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{make_trainer_table(match['trainer'])}\n", text).rstrip() + "\n"


def find_trainers(text: str) -> list[str]:
    """The trainers that the page has tables of, in order."""
    return [match["trainer"] for match in _TABLE.finditer(text)]


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE}: {len(TRAINERS)} tables")

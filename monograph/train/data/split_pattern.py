r"""Regular expressions that split texts into words: which of them a text may be cut between, by their form.

The cut is before a space (or the sign that stands for one) between two letters, `x| z`. The pieces of both sides are
those of the whole text when the following hold, which is what `judge` looks for:

1. Nothing looks behind or at the borders of the text, so what matches from the cut on depends on nothing before it.
2. No match goes across: none holds a letter and, right after it, a space. Each alternative is a row of classes of
   characters; none that matches a letter may come before, or be, one that matches a space.
3. So a match before the cut consumes nothing behind it, and `(?!\S)` sees the space or the end of the text: no
   difference. The matches of the text up to the cut are the same with and without the rest.

Then the cut is a border where some alternative matches the space, alone or with the letter after it. Where none does,
the space stays in one piece with its neighbours, and another step has to divide them.
"""

import itertools
import re
from dataclasses import dataclass
from enum import Enum

import tokenizers

LETTERS = "".join(map(chr, [*range(0x41, 0x5B), *range(0x61, 0x7B), *range(0x3B1, 0x3CA), *range(0x410, 0x450)]))
"""Latin, Greek and Cyrillic letters, between which texts are cut."""
_ESCAPE = re.compile(r"\\(?:[pP]\{\^?\w+\}|[sSdDwWrntfv]|x\{[0-9a-fA-F]+\}|[^\w\s])")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|&(?!&)|[^\\\[\]&])*\]")
_GROUP = re.compile(r"\(\?(i?):")
_COUNT = re.compile(r"([?*+]|\{(\d*)(,?)(\d*)\})([?+]?)")
_AHEAD = r"(?!\S)"
_MOST_FORMS = 200


class Cut(Enum):
    """What a step does at a cut."""

    DIVIDES = "it ends one word there and begins another"
    KEEPS = "it does not depend on what is behind the cut, and may leave both sides in one piece"


@dataclass(frozen=True)
class _Atom:
    """A class of characters, and how often it comes."""

    pattern: str
    least: int
    """Characters that it has to match; with 0 it may be left out."""
    is_repeated: bool


_Row = tuple[_Atom | None, ...]
"""An alternative; None stands for `(?!\\S)`."""


def judge(pattern: str, space: str) -> Cut | None:
    """What a split at the matches of a pattern does before `space` between letters; None where nothing is known."""
    try:
        rows, rest = _read_rows(pattern, "")
    except ValueError:
        return None
    if rest or len(rows) > _MOST_FORMS:
        return None
    divides = False
    for row in rows:
        atoms = [atom for atom in row if atom is not None]
        looks_ahead = len(atoms) < len(row)
        if not any(atom.least for atom in atoms):  # it matches nothing, also at the end of a piece
            return None
        if looks_ahead and (space != " " or row.index(None) < len(atoms)):
            return None
        try:
            kinds = [(_matches_any(atom, LETTERS), _matches_any(atom, space)) for atom in atoms]
            crosses = any(kinds[i][0] and kinds[j][1] for i, j in itertools.combinations(range(len(atoms)), 2))
            if crosses or any(all(kind) and atom.is_repeated for kind, atom in zip(kinds, atoms, strict=True)):
                return None
            divides = divides or (not looks_ahead and _takes_space(atoms, space))
        except ValueError:
            return None
    return Cut.DIVIDES if divides else Cut.KEEPS


def _takes_space(atoms: list[_Atom], space: str) -> bool:
    """Whether a row matches the space alone, or the space and any one letter."""

    def needed(without: set[int]) -> bool:
        return any(atom.least for number, atom in enumerate(atoms) if number not in without)

    for first, atom in enumerate(atoms):
        if atom.least > 1 or not _matches_any(atom, space):
            continue
        if not needed({first}):
            return True
        for last in range(first + 1, len(atoms)):
            if atoms[last].least < 2 and not needed({first, last}) and _matches_all(atoms[last], LETTERS):
                return True
    return False


def _matches_any(atom: _Atom, characters: str) -> bool:
    return len(_leave_out(atom.pattern, characters)) < len(characters)


def _matches_all(atom: _Atom, characters: str) -> bool:
    return not _leave_out(atom.pattern, characters)


def _leave_out(pattern: str, characters: str) -> str:
    """The characters that a class does not match, as the library's own engine sees it."""
    try:
        split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), "removed")
        return "".join(piece for piece, _ in split.pre_tokenize_str(characters))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(str(error)) from None


def _read_rows(text: str, flag: str) -> tuple[list[_Row], str]:
    """Alternatives up to the end of the text or of the group; ValueError for anything that is not in the list above."""
    rows: list[_Row] = []
    branches: list[_Row] = [()]
    while text and text[0] != ")":
        if text[0] == "|":
            rows, branches, text = rows + branches, [()], text[1:]
            continue
        options, text = _read_item(text, flag)
        branches = [before + option for before in branches for option in options]
        if len(branches) > _MOST_FORMS:
            raise ValueError("too many forms")
    return rows + branches, text


def _read_item(text: str, flag: str) -> tuple[list[_Row], str]:
    """What the next group or class stands for, and the text after it."""
    if text.startswith(_AHEAD):
        return [(None,)], text[len(_AHEAD) :]
    if group := _GROUP.match(text):
        rows, rest = _read_rows(text[group.end() :], "i" if group[1] else flag)
        if not rest:
            raise ValueError("a group does not end")
        count = _COUNT.match(rest, 1)
        if count is None:
            return rows, rest[1:]
        if count[1] != "?" or count[5] == "+":
            raise ValueError("a group is repeated")
        return [*rows, ()], rest[count.end() :]
    found = _CLASS.match(text) or _ESCAPE.match(text) or re.match(r"[^\\\[\](){}.*+?^$|]", text)
    if not found:
        raise ValueError(f"unknown form {text[:10]!r}")
    pattern = f"(?{flag}:{found[0]})"
    rest = text[found.end() :]
    count = _COUNT.match(rest)
    if count is None:
        return [(_Atom(pattern, least=1, is_repeated=False),)], rest
    if count[2] and (count[5] == "?" if not count[3] else int(count[2]) > int(count[4] or count[2])):
        raise ValueError("a count that engines read differently")  # `{2}?` is two or none, `{2,1}` one or two
    least = int(count[2] or 0) if count[1][0] == "{" else int(count[1] == "+")
    return [(_Atom(pattern, least, is_repeated=count[1] != "?"),)], rest[count.end() :]

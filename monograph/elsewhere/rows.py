"""The form of a row of the table: a setting of another trainer, and what to write here instead."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HF, TRL, TITAN, MEGATRON, AXOLOTL, NANOCHAT, LAUNCHERS = TRAINERS = (
    "HF Trainer",
    "TRL",
    "torchtitan",
    "Megatron-LM",
    "axolotl",
    "nanochat",
    "torchrun, accelerate, deepspeed",
)
"""The other programs, as messages and pages name them."""
NOT_HERE = "not here: "
"""How the advice of a row begins whose setting has no counterpart."""
_FLAG = re.compile(r"(?<!\S)--([a-z][\w.]*\w)")
_SWITCHED_ON = ("", "1", "yes", "on")
_SWITCHED_OFF = ("0", "no", "off", "none", "null")


@dataclass(frozen=True, slots=True)
class ForeignSetting:
    """A setting that other trainers have under `name`."""

    name: str
    trainers: tuple[str, ...]
    """Which of TRAINERS use the name; none for names that are common."""
    flags: str
    """What to write instead, with `{}` for the value as it was given; empty where there is nothing to write."""
    note: str = ""
    """What the value is made of, or what differs in meaning; `{}` as above."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Their value in lower case -> flags, where values have other names here."""

    @property
    def is_same(self) -> bool:
        """Whether our field takes the same value."""
        return self.flags.endswith(" {}") and not self.values

    @property
    def is_missing(self) -> bool:
        """Whether there is no counterpart."""
        return self.note.startswith(NOT_HERE)

    @property
    def fields(self) -> tuple[str, ...]:
        """Our fields that do it, in the order they are named; flags of other commands are left out."""
        texts = [self.flags, *self.values.values()]
        found = [path for text in texts for path in _FLAG.findall(text.partition("monograph ")[0])]
        return tuple(dict.fromkeys(found))

    def answer(self, words: Sequence[str]) -> str:
        """What to write in place of the flag with these words."""
        value = " ".join(shlex.quote(word) for word in words) or "VALUE"
        known = self.values.get(_fold(words))
        flags, note = ((self.flags if known is None else known).replace("{}", value), self.note.replace("{}", value))
        return f"{flags} ({note})" if flags and note else flags or note


def _fold(words: Sequence[str]) -> str:
    """A value as the keys of `values` are written: lower case, switches as true or false."""
    value = " ".join(words).strip().lower()
    return "true" if value in _SWITCHED_ON else "false" if value in _SWITCHED_OFF else value


def same(name: str, trainers: Sequence[str], path: str, note: str = "") -> ForeignSetting:
    """A setting whose value our field takes as it is."""
    return ForeignSetting(name, tuple(trainers), f"--{path} {{}}", note)


def other(
    name: str, trainers: Sequence[str], flags: str, note: str = "", values: Mapping[str, str] | None = None
) -> ForeignSetting:
    """A setting that is written in another way, for some `values` or in general."""
    return ForeignSetting(name, tuple(trainers), flags, note, values or {})


def missing(name: str, trainers: Sequence[str], instead: str) -> ForeignSetting:
    """A setting without a counterpart, and what to do instead."""
    return ForeignSetting(name, tuple(trainers), "", f"{NOT_HERE}{instead}")

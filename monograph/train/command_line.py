"""The command that started a run, with some flags changed: what a suggestion prints must work when it is pasted."""

import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

RANKS_VARIABLE = "MONOGRAPH_LOCAL_RANKS"
"""Set by `monograph train --ranks N` for the ranks that it starts, which do not see that flag themselves."""


@dataclass(frozen=True)
class CommandLine:
    """`monograph train` with the recipe and the flags as they were written."""

    words: Sequence[str] = field(default_factory=list)
    """The recipe, then flags in the form `--section.field value`."""
    ranks: int = 0
    """What --ranks said; 0 when it was left out."""
    is_launched: bool = False
    """Whether another launcher (torchrun) started the ranks."""

    def render(self, changes: Mapping[str, str]) -> str:
        """The same command with other values of some fields."""
        kept = drop_flags(self.words, changes)
        added = [word for path, value in changes.items() for word in (f"--{path}", value)]
        ranks = ["--ranks", str(self.ranks)] if self.ranks else []
        command = shlex.join(["monograph", "train", *kept, *ranks, *added])
        return f"with the same torchrun: -m {command}" if self.is_launched else command

    def render_config(self) -> str:
        """The command that shows every setting of this run."""
        return shlex.join(["monograph", "config", *self.words])


def drop_flags(words: Sequence[str], paths: Container[str]) -> list[str]:
    """The words without some flags and their values."""
    kept: list[str] = []
    is_dropped = False
    for word in words:
        if word.startswith("--"):
            is_dropped = word[2:] in paths
        if not is_dropped:
            kept.append(word)
    return kept

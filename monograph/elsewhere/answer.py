"""Answers for flags of other trainers. They are not accepted: the error says what to write here."""

import re
from collections.abc import Collection, Mapping, Sequence

from monograph.elsewhere.data_and_model import DATA, MODEL, RUN
from monograph.elsewhere.rows import TRAINERS, ForeignSetting
from monograph.elsewhere.training import BATCH, DEVICES, OPTIMIZER, PRECISION

SECTIONS: Mapping[str, tuple[ForeignSetting, ...]] = {
    "Optimizer and learning rate": OPTIMIZER,
    "Steps, batch and length": BATCH,
    "Precision, memory and compilation": PRECISION,
    "Devices and parallelism": DEVICES,
    "Data": DATA,
    "Model": MODEL,
    "Logs, validation and checkpoints": RUN,
}
"""Heading -> rows, for pages."""
SETTINGS: Mapping[str, ForeignSetting] = {row.name: row for rows in SECTIONS.values() for row in rows}
"""Name -> row."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_IN_A_RUN, _MODEL, _MODEL_FROM = "training.", "model.", "model.from"
"""Only commands that take a recipe have fields of these sections; those of the second are not the same in all."""


def fold_name(path: str) -> str:
    """A name as the table spells it: learningRate, Learning-Rate and learning_rate are one."""
    return _CAMEL.sub("_", path).replace("-", "_").lower()


def find_setting(path: str, known: Collection[str]) -> ForeignSetting | None:
    """The row for a flag, by its whole path or its last part; None for other names, and where no field does it."""
    path = fold_name(path)
    section, _, name = path.rpartition(".")
    row = SETTINGS.get(path) or SETTINGS.get(name)
    if row is None or (section and path != row.name and any(field.endswith(f".{name}") for field in row.fields)):
        return None  # our own name in another section is a slip, for the search for similar names
    absent = find_absent(row, known)
    is_run = any(name.startswith(_IN_A_RUN) for name in known)
    is_of_model = all(field.startswith(_MODEL) and field != _MODEL_FROM for field in absent)
    return row if is_of_model and (is_run or not (absent or row.is_missing)) else None


def find_absent(row: ForeignSetting, known: Collection[str]) -> list[str]:
    """The fields of a row that this configuration does not have, such as those of experts in a dense model."""
    return [path for path in row.fields if not any(name == path or name.startswith(f"{path}.") for name in known)]


def answer_row(row: ForeignSetting, words: Sequence[str], known: Collection[str]) -> str:
    """What to write here for a flag with these words."""
    absent = find_absent(row, known)
    if not absent or row.is_missing:
        return row.answer(words)
    return f"it is called {absent[0]}, which this model does not have; other models: monograph recipes"


def name_trainers(rows: Sequence[ForeignSetting]) -> str:
    """The programs that have all of these settings, else those that have any; empty for names of no program."""
    having_all = [name for name in TRAINERS if all(name in row.trainers for row in rows)]
    names = having_all or [name for name in TRAINERS if any(name in row.trainers for row in rows)]
    return " and ".join((", ".join(names[:-1]), names[-1]) if len(names) > 1 else names)


def explain_flags(
    flags: Sequence[tuple[str, Sequence[str]]], known: Collection[str], sections: Collection[str] = ()
) -> tuple[str, str, str] | None:
    """What, why and do of an error for flags (path, words) of other trainers; None when the table has none of them.

    All of them are answered at once, so that a line that was copied need not be corrected flag by flag.
    """
    found = [(path, words, row) for path, words in flags if (row := find_setting(path, known)) is not None]
    if not found:
        return None
    users = name_trainers([row for _, _, row in found])
    if len(found) == 1:
        path, words, row = found[0]
        unknown = f"{path} is a section, not a value" if path in sections else f"there is no field {path}"
        why = f"it is a flag of {users}" if users else unknown
        return " ".join((f"--{path}", *words)), why, answer_row(row, words, known)
    answers = [f"{' '.join((f'--{path}', *words))} -> {answer_row(row, words, known)}" for path, words, row in found]
    return (
        f"there are no fields {', '.join(path for path, _, _ in found)}",
        f"they are flags of {users}" if users else "they are called something else here",
        "\n".join(answers),
    )

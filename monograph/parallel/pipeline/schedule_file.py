"""A schedule of a user's own, read from a file: a line for every rank, actions separated by commas.

Loads without torch.

    # two ranks, two stages, two micro-batches; sends and receives are added when the file has none
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1

An empty entry, as in tables with a column for each moment, is an idle one and means nothing.
"""

from pathlib import Path

from monograph.errors import ConfigError
from monograph.parallel.pipeline.actions import Action, parse_action
from monograph.parallel.pipeline.schedule import Schedule
from monograph.plurals import counted
from monograph.system.foreign_json import UnusableFile, read_text
from monograph.system.foreign_text import split_lines

MAX_BYTES = 64 << 20


def read_schedule(path: str, *, ranks: int, micro_batches: int) -> Schedule:
    """The file's schedule, for this many ranks and micro-batches; whether it can run is checked elsewhere."""
    rows = _read_rows(path)
    if len(rows) != ranks:
        raise ConfigError(
            f"the pipeline schedule {path} has {counted(len(rows), 'line')} for {ranks} ranks",
            why="each line is the list of one rank along pp",
            do=f"write {ranks} lines, or --parallelism.pipeline_parallel_degree {len(rows)}",
        )
    parts = [(rank, part) for rank, row in enumerate(rows) for action in row for part in action.parts]
    found = 1 + max((part.micro_batch for _, part in parts), default=-1)
    if found != micro_batches:
        raise ConfigError(
            f"the pipeline schedule {path} is for {found} micro-batches and an update has {micro_batches}",
            why="a schedule lists the actions of all micro-batches of one update",
            do="change the file, or training.global_batch_size",
        )
    owners: dict[int, int] = {}
    for rank, part in parts:
        if owners.setdefault(part.stage, rank) != rank:
            raise ConfigError(
                f"the pipeline schedule {path}: rank {rank} has {part}, and stage {part.stage} is on rank "
                f"{owners[part.stage]}",
                why="a stage belongs to one rank",
                do="list all actions of a stage in the line of one rank",
            )
    missing = next(stage for stage in range(len(owners) + 1) if stage not in owners)
    if missing < max(len(owners), 1):
        raise ConfigError(
            f"the pipeline schedule {path} has no action for stage {missing}",
            why="stages are numbered from 0 without gaps",
            do="add the stage, or number the others anew",
        )
    placed = tuple(owners[stage] for stage in range(len(owners)))
    return Schedule(Path(path).name, placed, micro_batches, tuple(map(tuple, rows)))


def _read_rows(path: str) -> list[list[Action]]:
    try:
        text = read_text(Path(path), max_bytes=MAX_BYTES)
    except (OSError, UnusableFile) as error:
        raise ConfigError(
            f"the pipeline schedule {path} cannot be read",
            why=error.why if isinstance(error, UnusableFile) else str(error),
            do="--parallelism.pipeline_schedule: the path of a .csv file, or the name of a schedule",
        ) from None
    rows = []
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            rows.append([parse_action(entry) for entry in line.split(",") if entry.strip()])
        except ConfigError as error:
            raise ConfigError(f"{path}, line {number}: {error.what}", why=error.why, do=error.do) from None
    return rows

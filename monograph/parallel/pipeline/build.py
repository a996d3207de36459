"""The schedule of a run, by name or from a file: with its transfers, and checked. Loads without torch."""

from monograph.errors import ConfigError
from monograph.parallel.pipeline.builtin import BUILTIN, STAGES_PER_RANK, check_name, is_file
from monograph.parallel.pipeline.check import ScheduleError, check_schedule
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.schedule_file import read_schedule
from monograph.parallel.pipeline.transfers import has_transfers, with_transfers
from monograph.system.foreign_text import show


def build_schedule(name: str, *, ranks: int, virtual_stages: int, micro_batches: int) -> Schedule:
    """A schedule that can run; `virtual_stages` is the number of stages per rank, 0 for what the schedule needs."""
    check_name(name)
    if is_file(name):
        schedule = read_schedule(name, ranks=ranks, micro_batches=micro_batches)
        if virtual_stages and virtual_stages * ranks != schedule.stages:
            raise ConfigError(
                f"pipeline_virtual_stages is {virtual_stages} and {name} has {schedule.stages} stages on {ranks} ranks",
                why="a schedule's file says which rank has which stages",
                do="--parallelism.pipeline_virtual_stages 0",
            )
    else:
        schedule = BUILTIN[name](ranks, virtual_stages or STAGES_PER_RANK.get(name, 1), micro_batches)
    if not has_transfers(schedule):
        schedule = with_transfers(schedule)
    try:
        check_schedule(schedule)
    except ScheduleError as error:
        if not is_file(name):
            raise
        raise ScheduleError(f"{show(name)}: {error.what}", why=error.why, do=error.do) from None
    return schedule

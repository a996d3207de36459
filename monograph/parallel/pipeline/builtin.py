"""The schedules that come with the package. Each is a function of ranks, stages per rank and micro-batches. No torch.

gpipe              all forwards, then all backwards
1f1b               one forward, one backward in turn, once every stage has work
interleaved_1f1b   the same with several stages per rank: a smaller bubble, more transfers
zero_bubble        one stage per rank; weight gradients fill the bubble (ZB-H1: no more memory than 1f1b)
zbv                two stages per rank, placed there and back; weight gradients fill the bubble
"""

from collections.abc import Callable

from monograph.errors import ConfigError, did_you_mean
from monograph.parallel.pipeline.actions import backward, forward, input_grad, weight_grad
from monograph.parallel.pipeline.greedy import build_split_schedule
from monograph.parallel.pipeline.schedule import Schedule, place_in_loops, place_in_v


def build_gpipe(ranks: int, per_rank: int, micro_batches: int) -> Schedule:
    """All forwards, stage by stage, then all backwards in the opposite order of stages."""
    stages = ranks * per_rank
    rows = []
    for rank in range(ranks):
        own = range(rank, stages, ranks)
        first = [forward(stage, number) for stage in own for number in range(micro_batches)]
        second = [backward(stage, number) for stage in reversed(own) for number in range(micro_batches)]
        rows.append((*first, *second))
    return Schedule("gpipe", place_in_loops(stages, ranks), micro_batches, tuple(rows))


def build_1f1b(ranks: int, per_rank: int, micro_batches: int) -> Schedule:
    """A stage holds as many micro-batches as there are stages from it to the last."""
    _check_per_rank("1f1b", per_rank, 1)
    rows = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        row = [forward(rank, number) for number in range(ahead)]
        for number in range(micro_batches):
            row.append(backward(rank, number))
            if number + ahead < micro_batches:
                row.append(forward(rank, number + ahead))
        rows.append(tuple(row))
    return Schedule("1f1b", place_in_loops(ranks, ranks), micro_batches, tuple(rows))


def build_interleaved_1f1b(ranks: int, per_rank: int, micro_batches: int) -> Schedule:
    """Micro-batches go through all stages of a rank in groups of as many as there are ranks."""
    group = min(ranks, micro_batches)
    if micro_batches % group:
        nearest = max(group, round(micro_batches / group) * group)
        raise ConfigError(
            f"interleaved_1f1b has {micro_batches} micro-batches for {ranks} pipeline ranks",
            why="micro-batches go through a rank's stages in groups of as many as there are ranks",
            do=f"use {nearest} micro-batches (training.global_batch_size), or --parallelism.pipeline_schedule 1f1b",
        )
    total = per_rank * micro_batches
    order = [
        (local, round_ * group + number)
        for round_ in range(micro_batches // group)
        for local in range(per_rank)
        for number in range(group)
    ]
    back = [(per_rank - 1 - local, number) for local, number in order]
    rows = []
    for rank in range(ranks):
        ahead = min(total, (per_rank - 1) * group + 2 * (ranks - 1 - rank) + 1)
        row = [forward(local * ranks + rank, number) for local, number in order[:ahead]]
        for index, (local, number) in enumerate(back):
            row.append(backward(local * ranks + rank, number))
            if index + ahead < total:
                later, other = order[index + ahead]
                row.append(forward(later * ranks + rank, other))
        rows.append(tuple(row))
    stages = ranks * per_rank
    return Schedule("interleaved_1f1b", place_in_loops(stages, ranks), micro_batches, tuple(rows))


def build_zero_bubble(ranks: int, per_rank: int, micro_batches: int) -> Schedule:
    """ZB-H1: 1f1b with split backwards; rank r puts its weight gradients off by r micro-batches, into the bubble."""
    _check_per_rank("zero_bubble", per_rank, 1)
    rows = []
    for rank in range(ranks):
        ahead = min(micro_batches, ranks - rank)
        row = [forward(rank, number) for number in range(ahead)]
        for number in range(micro_batches):
            row.append(input_grad(rank, number))
            if number >= rank:
                row.append(weight_grad(rank, number - rank))
            if number + ahead < micro_batches:
                row.append(forward(rank, number + ahead))
        row += [weight_grad(rank, number) for number in range(max(0, micro_batches - rank), micro_batches)]
        rows.append(tuple(row))
    return Schedule("zero_bubble", place_in_loops(ranks, ranks), micro_batches, tuple(rows))


def build_zbv(ranks: int, per_rank: int, micro_batches: int) -> Schedule:
    """The first and the last stage share a rank; each rank holds at most 2 x ranks micro-batches of its half stages."""
    _check_per_rank("zbv", per_rank, 2)
    placed = place_in_v(ranks)
    rows = build_split_schedule(placed, micro_batches, ranks=ranks, limit=2 * ranks)
    return Schedule("zbv", placed, micro_batches, rows)


def _check_per_rank(name: str, per_rank: int, wanted: int) -> None:
    if per_rank != wanted:
        raise ConfigError(
            f"pipeline_schedule {name} has {per_rank} stages per rank",
            why=f"it is defined for {wanted}",
            do=f"--parallelism.pipeline_virtual_stages {wanted}, or another schedule",
        )


BUILTIN: dict[str, Callable[[int, int, int], Schedule]] = {
    "gpipe": build_gpipe,
    "1f1b": build_1f1b,
    "interleaved_1f1b": build_interleaved_1f1b,
    "zero_bubble": build_zero_bubble,
    "zbv": build_zbv,
}
STAGES_PER_RANK = {"interleaved_1f1b": 2, "zbv": 2}
"""Where the number of virtual stages is left open; others have one."""
PLAIN = ("gpipe", "1f1b", "interleaved_1f1b")
"""Schedules with whole backwards: those that eager and layer mode can run."""


def check_name(name: str) -> None:
    """Refuse a schedule that does not exist."""
    if name not in BUILTIN and not is_file(name):
        raise ConfigError(
            f"there is no pipeline schedule '{name}'",
            why=f"there are {', '.join(BUILTIN)}, and files of your own (a path that ends in .csv)",
            do=did_you_mean(name, BUILTIN) or "--parallelism.pipeline_schedule 1f1b",
        )


def is_file(name: str) -> bool:
    """Whether a schedule is named by the path of a file."""
    return name.endswith(".csv")

"""The static check of schedules, against judges that share no code with it."""

import pytest

from monograph.parallel.pipeline.actions import parse_action
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.builtin import BUILTIN, build_1f1b
from monograph.parallel.pipeline.check import ScheduleError, check_schedule
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import with_transfers
from tests.parallel.pipeline.random_schedules import draw, find_fault, run_on_threads


def judge(seeds):
    """Compare the checker with the other judges; how many schedules it accepted."""
    accepted = 0
    for seed in seeds:
        schedule = draw(seed)
        fault = find_fault(schedule)
        try:
            check_schedule(schedule)
            verdict = ""
        except ScheduleError as error:
            verdict = str(error)
        assert bool(verdict) == bool(fault), f"seed {seed}: checker {verdict!r}, other {fault!r}\n{schedule.text()}"
        if not verdict:
            accepted += 1
            run_on_threads(schedule)
    return accepted


def test_random_schedules_are_refused_exactly_when_a_cycle_search_finds_a_fault():
    accepted = judge(range(600))
    assert 100 < accepted < 500


@pytest.mark.long
def test_ten_thousand_random_schedules_are_judged_alike_and_accepted_ones_run_on_threads():
    accepted = judge(range(10_000))
    assert 2_000 < accepted < 8_000


@pytest.mark.parametrize("name", BUILTIN)
def test_every_schedule_of_ours_passes_the_check_and_runs_on_threads(name):
    for ranks in (1, 2, 3, 4, 8):
        for micro_batches in (1, 2, 3, 4, 8, 12):
            if name == "interleaved_1f1b" and micro_batches > ranks and micro_batches % ranks:
                continue
            schedule = build_schedule(name, ranks=ranks, virtual_stages=0, micro_batches=micro_batches)
            assert not find_fault(schedule)
            if ranks * micro_batches <= 16:
                run_on_threads(schedule)


def change(schedule, rank, edit):
    rows = [list(row) for row in schedule.actions]
    edit(rows[rank])
    return Schedule(schedule.name, schedule.stage_ranks, schedule.micro_batches, tuple(map(tuple, rows)))


def test_a_deadlock_names_the_rank_its_action_and_the_partner():
    # Rank 1 wants the second micro-batch first, and rank 0 wants the first one's gradient before it makes the second.
    schedule = parse([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])
    with pytest.raises(ScheduleError) as caught:
        check_schedule(schedule)
    text = str(caught.value)
    assert "rank 0 waits in 0B0 for 1SEND_B0 of rank 1" in text
    assert "rank 1 in 1F1 for 0SEND_F1 of rank 0" in text


def test_a_send_behind_the_action_that_waits_for_its_answer_is_a_deadlock():
    from_file = parse([["0F0", "0B0"], ["1F0", "1B0"]])
    # The gradient would have to arrive before the forward whose carry it belongs to was sent.
    broken = change(from_file, 0, lambda row: row.append(row.pop(row.index(find(row, "0SEND_F0")))))
    with pytest.raises(ScheduleError) as caught:
        check_schedule(broken)
    text = str(caught.value)
    assert "rank 0 waits in 0B0 for 1SEND_B0 of rank 1" in text
    assert "rank 1 in 1F0 for 0SEND_F0 of rank 0" in text


def find(row, text):
    return next(action for action in row if str(action) == text)


def parse(rows):
    actions = tuple(tuple(map(parse_action, row)) for row in rows)
    count = 1 + max(action.micro_batch for row in actions for action in row)
    return with_transfers(Schedule("test", tuple(range(len(rows))), count, actions))


@pytest.mark.parametrize(
    ("rank", "edit", "words"),
    [
        (0, lambda row: row.remove(find(row, "0F1")), "0SEND_F1\\n.*0F1 of this rank"),
        (0, lambda row: row.remove(find(row, "0B1")), "rank 0 has no 0B1"),
        (0, lambda row: row.append(find(row, "0F1")), "twice"),
        (1, lambda row: row.remove(find(row, "1RECV_F0")), "1F0"),
        (0, lambda row: row.remove(find(row, "0SEND_F1")), "rank 1 waits for 0SEND_F1"),
        (1, lambda row: row.insert(0, row.pop(row.index(find(row, "1B0")))), "backward follows forward"),
    ],
)
def test_a_wrong_list_is_refused_at_its_first_wrong_action(rank, edit, words):
    schedule = change(with_transfers(build_1f1b(2, 1, 2)), rank, edit)
    with pytest.raises(ScheduleError, match=words) as caught:
        check_schedule(schedule)
    assert "rank" in str(caught.value)

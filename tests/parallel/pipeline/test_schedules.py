"""The built-in schedules: their bubbles and memory are the published ones."""

import pytest

from monograph.errors import ConfigError
from monograph.parallel.pipeline.actions import ActionKind
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.simulate import StageCost, simulate


def run(name, ranks, per_rank, micro_batches):
    schedule = build_schedule(name, ranks=ranks, virtual_stages=per_rank, micro_batches=micro_batches)
    third = 1 / per_rank
    cost = StageCost(
        forward_seconds=third,
        input_grad_seconds=third,
        weight_grad_seconds=third,
        saved_bytes=1,
        saved_for_weights_bytes=1,
    )
    return schedule, simulate(schedule, [cost] * schedule.stages)


@pytest.mark.parametrize(
    ("name", "per_rank", "extra"),
    [
        ("gpipe", 1, 1),
        ("1f1b", 1, 1),
        ("interleaved_1f1b", 2, 1 / 2),
        ("interleaved_1f1b", 4, 1 / 4),
        ("zero_bubble", 1, 1 / 3),
        ("zbv", 2, 1 / 6),
    ],
)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 16), (4, 32)])
def test_the_bubble_over_ideal_time_is_the_published_one(name, per_rank, extra, ranks, micro_batches):
    """(p - 1) / m for 1f1b, over v when interleaved, a third of it for ZB-H1 and a sixth for ZBV."""
    _, simulation = run(name, ranks, per_rank, micro_batches)
    over = simulation.seconds / (3 * micro_batches) - 1
    assert over <= extra * (ranks - 1) / micro_batches * (1.5 if name == "zbv" and ranks == 8 else 1) + 1e-9
    if name != "zbv":
        assert over == pytest.approx(extra * (ranks - 1) / micro_batches)


def test_1f1b_holds_as_many_micro_batches_as_stages_follow_and_zero_bubble_no_more_than_its_first_rank():
    _, plain = run("1f1b", 4, 1, 16)
    assert plain.peak_bytes == (4, 3, 2, 1)
    assert run("gpipe", 4, 1, 16)[1].peak_bytes == (16,) * 4
    assert run("zero_bubble", 4, 1, 16)[1].peak_bytes == (4,) * 4
    assert run("zbv", 4, 2, 16)[1].peak_bytes == (8,) * 4  # stages of half the size


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv"])
def test_weight_gradients_of_a_stage_come_in_the_order_of_the_micro_batches(name):
    schedule, _ = run(name, 4, 2 if name in ("interleaved_1f1b", "zbv") else 1, 8)
    for stage, rank in enumerate(schedule.stage_ranks):
        numbers = [
            action.micro_batch
            for action in schedule.actions[rank]
            if action.stage == stage and action.kind in (ActionKind.BACKWARD, ActionKind.WEIGHT_GRAD)
        ]
        assert numbers == list(range(8))


def test_the_first_and_the_last_stage_of_zbv_share_a_rank():
    schedule, _ = run("zbv", 4, 2, 8)
    assert schedule.stage_ranks == (0, 1, 2, 3, 3, 2, 1, 0)


def test_a_file_is_read_with_and_without_transfers_and_means_the_same(tmp_path):
    ours = build_schedule("1f1b", ranks=2, virtual_stages=0, micro_batches=3)
    for number, rows in enumerate((ours.actions, [[a for a in row if not a.is_transfer] for row in ours.actions])):
        path = tmp_path / f"{number}.csv"
        path.write_text("# mine\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
        read = build_schedule(str(path), ranks=2, virtual_stages=0, micro_batches=3)
        assert read.actions == ours.actions


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0F0,0B0\n", "1 line for 2 ranks"),
        ("0F0,0B0\n1F0,1X0\n", "line 2: '1X0' is not an action"),
        ("0F0,0B0\n1F0,1B0\n", "is for 1 micro-batches and an update has 2"),
        ("0F0,0B0,0F1,0B1\n1F0,1B0,0B1\n", "stage 0 is on rank 0"),
        ("0F0,0B0,0F1,0B1\n2F0,2B0,2F1,2B1\n", "no action for stage 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1B1,1F1\n", "backward follows forward"),
        ("0F0+0W0\n1F0\n", "not an action"),
        ("+".join(["0F0"] * 5000) + "\n1F0\n", "not an action"),
        ("0F" + "9" * 5000 + "\n1F0\n", "not an action"),
        ("0F0,0B0,0F1,0B1\n999999999F0\n", "no action for stage 1"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", r"mine\.csv: pipeline rank 0 cannot run 0B1"),
    ],
)
def test_a_file_that_cannot_run_is_refused_with_its_line_or_action(tmp_path, text, words):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        build_schedule(str(path), ranks=2, virtual_stages=0, micro_batches=2)


@pytest.mark.parametrize(
    ("name", "per_rank", "micro_batches", "words"),
    [
        ("1f1B", 0, 4, "did you mean '1f1b'"),
        ("nothing.csv", 0, 4, "cannot be read"),
        ("1f1b", 2, 4, "defined for 1"),
        ("zbv", 3, 4, "defined for 2"),
        ("interleaved_1f1b", 2, 5, "use 4 micro-batches"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused_with_what_it_can(name, per_rank, micro_batches, words):
    with pytest.raises(ConfigError, match=words):
        build_schedule(name, ranks=2, virtual_stages=per_rank, micro_batches=micro_batches)

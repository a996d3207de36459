"""plan: a run that cannot fit into its devices is refused before it starts, with a command that can."""

import shlex

import pytest

from monograph.commands.arguments import RankOptions
from monograph.commands.request import read_request
from monograph.errors import ConfigError
from monograph.graph.memory import LiveMemory
from monograph.machine.table import MACHINES
from monograph.parallel.pipeline.build import build_schedule
from monograph.plan.axes import find_fixed
from monograph.plan.memory import HeldPiece, MemoryKind, StepMemory, find_memory_parts
from monograph.plan.room import check_room, estimate_needed
from monograph.plan.show import make_command
from monograph.train.layout import plan_run_mesh

H200 = MACHINES["H200"]


def check(line, *, room, ranks=1, **options):
    """Whether a run fits, as `train` asks before anything is allocated."""
    request = read_request(line.split(), RankOptions())
    config, words = request.config, request.words
    fixed = find_fixed(config, request.origins)
    mesh = plan_run_mesh(config, ranks)
    check_room(config, mesh, H200, fixed, room=room, command=lambda run: make_command(run, words), **options)
    return estimate_needed(config, mesh, H200)


@pytest.mark.parametrize(
    ("line", "gib"),
    [
        ("llama3_1b --training.global_batch_size 16 --training.local_batch_size 1", 24),
        pytest.param("llama3_8b --training.global_batch_size 16", 139.7, marks=pytest.mark.long),
    ],
)
def test_a_run_that_cannot_fit_is_refused_with_the_command_of_one_that_does(line, gib):
    with pytest.raises(ConfigError, match="of a device's memory, which has") as refused:
        check(line, room=int(gib * 2**30))
    assert "parameters" in refused.value.why and "optimizer" in refused.value.why
    command = shlex.join(shlex.split(refused.value.do, comments=True))
    assert command.startswith(f"monograph train {line}") and "--activation_checkpoint.mode full" in command
    assert check(command.removeprefix("monograph train "), room=int(gib * 2**30)).peak < gib * 2**30


def test_a_benchmark_of_one_device_is_not_told_to_take_more_of_them():
    """10 GiB are too few for one device, and enough for a run over several."""
    line, room = "llama3_1b --training.local_batch_size 1", 10 * 2**30
    with pytest.raises(ConfigError) as may_grow:
        check(line, room=room)
    with pytest.raises(ConfigError) as alone:
        check(line, room=room, may_grow=False)
    assert "--ranks" in may_grow.value.do
    assert "--ranks" not in alone.value.do and "--activation_checkpoint.mode full" in alone.value.do


@pytest.mark.parametrize(("is_recorded", "size"), [(False, 6 * 400), (True, 6 * 400 + 4 * 200)])
def test_recordings_hold_the_first_gradients_beside_their_wider_sums(is_recorded, size):
    """Of four gradients of 200 bytes with sums of 400, and two whose sums are as wide as they are."""
    pieces = [
        HeldPiece(LiveMemory(None, 0, 200 if wide else 400, 0, 0), MemoryKind.GRADIENTS, "", False, 400)
        for wide in (True, True, True, True, False, False)
    ]
    memory = StepMemory(pieces, [0], {})
    parts = find_memory_parts(memory, {}, state_ratio=2, is_accumulating=True, is_recorded=is_recorded)
    assert parts.gradients == size


def test_a_step_without_a_graph_is_refused_for_its_weights_gradients_and_moments_alone():
    needed = check("llama3_debugmodel --compile.mode eager", room=10**9)
    assert needed.parameters == needed.gradients == needed.optimizer / 2 and needed.saved == 0
    with pytest.raises(ConfigError, match="of a device's memory"):
        check("llama3_debugmodel --compile.mode eager", room=needed.peak - 1)


def test_what_a_compiler_would_fuse_is_not_estimated_by_compiling(monkeypatch):
    """Rank 0 would compile the step for a CPU at every start."""

    def refuse(*_, **__):
        raise AssertionError("a graph was captured")

    monkeypatch.setattr("monograph.plan.room.capture_step", refuse)
    needed = check("llama3_debugmodel --passes.mark_regions.regions blocks", room=10**12)
    assert needed.parameters > 0 and needed.saved == 0


def test_a_pipeline_whose_schedule_is_a_file_is_estimated_with_its_own_stages(tmp_path):
    path = tmp_path / "zbv.csv"
    rows = build_schedule("zbv", ranks=2, virtual_stages=2, micro_batches=8).actions
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
    line = f"llama3_debugmodel --parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_schedule {path}"
    assert check(f"{line} --training.global_batch_size 32", room=10**12, ranks=2).saved > 0

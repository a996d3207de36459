"""plan: a printed command asks for what was planned when a shell has read it."""

import re
import shlex
from dataclasses import replace

import pytest

from monograph.cli import main
from monograph.commands.arguments import RankOptions
from monograph.commands.plan import print_runs
from monograph.commands.request import read_request
from monograph.machine.table import MACHINES
from monograph.models.flops import FlopsPerToken
from monograph.parallel.mesh import Mesh
from monograph.plan.choice import PipelineChoice, RunChoice
from monograph.plan.measure import StepEstimate
from monograph.plan.memory import MemoryParts
from monograph.plan.planned import PlannedRun
from monograph.plan.search import choose_best
from monograph.plan.show import make_command
from monograph.train.layout import plan_run_mesh

H100 = MACHINES["H100"]
NOTHING = MemoryParts(parameters=0, gradients=0, optimizer=0, saved=0, working=0, most_saved=0)


def make_run(request, choice, *, offloaded=0, machine=H100):
    """A planned run without its capture."""
    step = StepEstimate(
        compute_seconds=1.0,
        exposed_seconds={},
        collective_seconds={},
        optimizer_seconds=0.0,
        memory=NOTHING,
        offloaded_bytes=offloaded,
    )
    machine = machine.for_ranks(choice.mesh.world_size)
    return PlannedRun(request.config, choice, PipelineChoice(), step, machine, FlopsPerToken(1.0, 1.0))


def test_a_mesh_is_shown_once_with_gathered_weights_kept_or_not_whichever_is_faster():
    request = read_request(["llama3_1b", "--training.global_batch_size", "32"], RankOptions())
    runs = []
    for seconds, reshard, schedule in (
        (1.0, False, "1f1b"),
        (1.1, True, "1f1b"),
        (1.2, True, "zbv"),
        (1.3, False, "zbv"),
    ):
        run = make_run(request, RunChoice(Mesh(pp=2, dp_shard=4), 1, 8, "full", reshard))
        step = replace(run.step, compute_seconds=seconds)
        runs.append(replace(run, step=step, pipeline=PipelineChoice(schedule)))
    other = make_run(request, RunChoice(Mesh(dp_shard=8), 1, 4, "full", True))
    other = replace(other, step=replace(other.step, compute_seconds=9.0))
    best = choose_best([*runs, other], 10)
    assert best == [runs[0], runs[2], other]
    assert choose_best([*runs, other], 2) == [runs[0], other], "another mesh comes before another schedule"


MOE = "deepseek_v3_16b --training.global_batch_size 32"
CASES = {
    "a pattern is quoted once": (f"{MOE} --compile.numerics fast", Mesh(dp_shard=8, ep=8), {"overlap": True}),
    "a list that becomes empty": (
        "llama3_1b --activation_checkpoint.mode full --activation_checkpoint.save layers.*::mm",
        Mesh(dp_shard=8),
        {"policy": "selective"},
    ),
    "a flag that is planned otherwise is replaced": (
        f"{MOE} --passes.on offload_activations --passes.offload_activations.budget_gib 1",
        Mesh(dp_shard=8),
        {"offload": True},
    ),
    "a batch that followed the ranks": ("llama3_1b --training.global_batch_size -1", Mesh(tp=8), {"micro_batches": 8}),
    "words with spaces": ("llama3_1b --job.description", Mesh(), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_printed_command_is_read_back_as_what_was_planned(case):
    line, mesh, changes = CASES[case]
    words = [*line.split(), 'it\'s a "run"'] if line.endswith("description") else line.split()
    request = read_request(words, RankOptions())
    count = 32 // mesh.data_parts
    choice = RunChoice(mesh, 1, count, "full", True, request.config.compile.numerics)._replace(**changes)
    run = make_run(request, choice, offloaded=3 << 30)
    command = shlex.split(make_command(run, request.words))
    typed = command[command.index("train") + 1 :]
    again = read_request(typed, RankOptions())
    assert again.config == run.config
    assert plan_run_mesh(again.config, mesh.world_size).world_size == mesh.world_size


@pytest.mark.parametrize(("ranks", "nodes"), [(16, "2 8"), (20, "4 5"), (12, "2 6"), (24, "3 8")])
def test_a_command_for_several_nodes_starts_as_many_ranks_as_were_planned(ranks, nodes):
    request = read_request(f"llama3_1b --training.global_batch_size {ranks}".split(), RankOptions())
    run = make_run(request, RunChoice(Mesh(dp_shard=ranks), 1, 1, "full", True))
    count, each = nodes.split()
    assert make_command(run, request.words).startswith(f"torchrun --nnodes {count} --nproc_per_node {each} ")
    assert run.machine.devices_per_node == int(each), "and is estimated for such nodes"


def test_devices_that_fill_no_node_evenly_are_refused(capsys):
    assert main(["plan", "llama3_1b", "--gpus", "23", "--machine", "h100"]) == 2
    assert "--gpus 16 or --gpus 24" in capsys.readouterr().err


ROWS = [
    ("1.", "dp_shard 64", "1 x 8", "all", "621,415", "56.9 %", "43.4 GiB", "", "compute"),
    (
        *("9.", "pp 2 (interleaved_1f1b x 4), dp_replicate 2, dp_shard 16", "1 x 16", "all, weights stay gathered"),
        *("580,393", "53.1 %", "71.4 GiB", "3.4 %", "compute"),
    ),
]


def test_on_a_narrow_terminal_numbers_of_runs_stay_columns(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    print_runs(ROWS)
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 6 and max(map(len, lines)) <= 100 and max(len(line) for line in lines[1::2]) <= 80
    heads, first, second = lines[1::2]
    for name, column in (("tokens/s", 0), ("MFU", 1), ("needs", 2), ("limited by", -1)):
        start = heads.index(name)
        assert (first[start:].split()[0], second[start:].split()[0]) == tuple(
            row[4:][column].split()[0] for row in ROWS
        )
    assert lines[2] == "  1.  dp_shard 64, saves all"


def test_a_wide_terminal_has_one_line_for_each_run(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    print_runs(ROWS)
    assert len(capsys.readouterr().out.splitlines()) == 3

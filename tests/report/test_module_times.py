"""Measured time by module: ops on a CPU, kernels by their launch, replayed kernels by order; beside the prediction."""

import json
import re
from collections import Counter

import pytest

from monograph import cli
from monograph.execute.trace_marks import ELSEWHERE
from monograph.report.join_traces import join_traces, read_trace
from monograph.report.module_times import Module, compare_modules, find_timed_events
from tests.report.test_trace import predict

ATTENTION, FEED = Module("layers.0.attention", "forward"), Module("layers.0.ffn", "backward")
MODEL = "llama3_debugmodel --model.n_layers 2 --training.seq_len 64 --debug.device cpu"


def make_range(module, ts, dur, **changes):
    name = f"@ {module.path} {module.direction}"
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | changes


def make_op(name, ts, dur, sequence=None, tid=1):
    args = {} if sequence is None else {"Sequence number": sequence}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def make_launch(number, ts, name="cudaLaunchKernel"):
    launch = {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": 1}
    return launch | {"args": {"correlation": number}}


def make_kernel(name, number, ts, dur=5):
    kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur}
    return kernel | {"args": {"correlation": number}}


STEP = {"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1, "ts": 0, "dur": 1000}
NAMED = [
    STEP,
    make_range(ATTENTION, 10, 30),
    make_op("aten::mm", 11, 20),
    make_launch(1, 12),
    make_launch(2, 15),
    make_range(FEED, 50, 30),
    make_launch(3, 52),
    make_launch(4, 90),
    *(make_kernel(name, number, 100 * number) for number, name in enumerate(["mm", "add", "mm", "adam"], 1)),
]
"""A step run op by op: a matmul in each module, an addition in one, and the optimizer in none."""


def replay(*names):
    """A step that replays a CUDA graph with these kernels: one launch, no ranges."""
    kernels = [make_kernel(name, 9, 20 + 10 * place) for place, name in enumerate(names)]
    return [STEP, make_launch(9, 10, "cudaGraphLaunch"), *kernels]


def modules(timed):
    return [(each.event["name"], each.module) for each in timed]


def test_kernels_belong_to_the_range_that_they_were_launched_in():
    assert modules(find_timed_events(NAMED)) == [("mm", ATTENTION), ("add", ATTENTION), ("mm", FEED), ("adam", None)]


def test_replayed_kernels_take_their_modules_from_the_same_step_by_order():
    timed = find_timed_events(replay("mm", "add", "mm", "adam"), NAMED)
    assert modules(timed) == [("mm", ATTENTION), ("add", ATTENTION), ("mm", FEED), ("adam", None)]
    assert {module for _, module in modules(find_timed_events(replay("mm", "add", "mm")))} == {None}


def test_a_replay_of_two_micro_batches_has_every_kernel_twice():
    timed = find_timed_events(replay("mm", "add", "mm", "mm", "add", "mm"), NAMED)
    assert [module for _, module in modules(timed)] == [ATTENTION, ATTENTION, FEED] * 2


def test_kernels_of_a_name_that_occurs_more_or_less_often_stay_without_a_module():
    timed = find_timed_events(replay("mm", "mm", "mm", "add", "other"), NAMED)
    assert [module for _, module in modules(timed)] == [None, None, None, ATTENTION, None]


def test_only_ops_that_no_op_called_count_on_a_cpu_and_backward_is_found_by_autograds_numbers():
    events = [
        make_range(ATTENTION, 0, 100),
        make_op("aten::linear", 10, 50, sequence=4),
        make_op("aten::mm", 20, 30, sequence=4),
        make_op("MmBackward0", 200, 40, sequence=4, tid=2),
        make_op("aten::mm", 210, 20, tid=2),
        make_op("aten::add", 300, 7),
    ]
    found = {(each.event["name"], each.event["dur"]): each.module for each in find_timed_events(events)}
    backward = Module(ATTENTION.path, "backward")
    assert found == {("aten::linear", 50): ATTENTION, ("MmBackward0", 40): backward, ("aten::add", 7): None}


def test_modules_of_all_blocks_are_one_row_and_the_largest_difference_is_first():
    def slice_of(path, direction, dur):
        facts = {"module": path, "direction": direction}
        return {"ph": "X", "cat": "compute", "name": "mm", "dur": dur, "args": facts}

    predicted = [slice_of("layers.0.ffn", "forward", 5), slice_of("layers.1.ffn", "forward", 5)]
    predicted += [slice_of("", "backward", 3), slice_of("head", "forward", 2)]
    events = [
        *(make_range(Module(f"layers.{block}.ffn", "forward"), 100 * block, 50) for block in (0, 1)),
        *(make_op("aten::mm", 100 * block + 1, 20) for block in (0, 1)),
        make_op("c10d::allreduce_", 31, 15),
        make_range(Module(ELSEWHERE, "backward"), 200, 10),
        make_op("aten::mul", 201, 4),
        make_op("aten::_fused_adamw_", 300, 9),
    ]
    rows, unknown = compare_modules(predicted, find_timed_events(events))
    micro = [(*row.module, round(1e6 * row.predicted), round(1e6 * row.measured)) for row in rows]
    assert micro == [("layers.*.ffn", "forward", 10, 40), ("head", "forward", 2, 0), ("", "backward", 3, 4)]
    assert unknown == pytest.approx(9e-6)


@pytest.mark.parametrize("args", [{"correlation": []}, {"correlation": "1"}, {"correlation": True}, {}, None])
def test_odd_facts_of_events_leave_them_without_a_module(args):
    events = [*NAMED[:4], make_kernel("mm", 1, 100) | {"args": args}]
    assert modules(find_timed_events(events)) == [("mm", None)]


def test_kernels_of_the_joined_trace_say_their_modules():
    joined = join_traces(predict()[1]["traceEvents"], replay("mm", "add", "mm", "adam"), named=NAMED)
    kernels = [each for each in joined.trace["traceEvents"] if each.get("cat") == "kernel"]
    assert [each["args"].get("module") for each in kernels] == [*[ATTENTION.path] * 2, FEED.path, None]
    assert [each["args"].get("direction") for each in kernels] == ["forward", "forward", "backward", None]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A predicted step, and traces of real steps: op by op with names, and of a training run without them."""
    folder = tmp_path_factory.mktemp("traces")
    run = f"train {MODEL} --training.steps 2 --validator.interval 0 --lr_scheduler.warmup_steps 0"
    lines = [
        f"inspect {MODEL} --machine cpu --out {folder / 'predicted'}",
        f"bench {MODEL} --modes exact --steps 2 --warmup 1 --profile {folder / 'bench'}",
        f"{run} --profiler.start 2 --profiler.steps 1 --job.dump_folder {folder / 'run'}",
    ]
    assert [cli.main(line.split()) for line in lines] == [0, 0, 0]
    return folder


@pytest.mark.long
def test_times_of_modules_are_those_that_the_profiler_itself_adds_up(measured):
    shares = json.loads((measured / "bench" / "exact.shares.json").read_text())
    expected = {row["name"]: row["ms"] for row in shares["by_path"] if row["name"] != ELSEWHERE}
    found: Counter[str] = Counter()
    for each in find_timed_events(read_trace(str(measured / "bench" / "exact.trace.json"))):
        if each.module is not None:
            found[re.sub(r"\.\d+(?=[. ])", ".*", " ".join(each.module))] += each.event["dur"] / 1000 / 3
    assert set(found) == set(expected) and len(found) > 20
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_a_trace_of_training_is_joined_with_the_prediction_module_by_module(measured, capsys):
    predicted = measured / "predicted" / "predicted.trace.json"
    (trained,) = (measured / "run" / "traces").glob("*.json")
    words = ["trace", "join", str(predicted), str(trained), "--out", str(measured / "both.json"), "--top", "3"]
    assert cli.main(words) == 0
    assert "give a trace of bench --profile of the same step as --names" in capsys.readouterr().out
    assert cli.main([*words, "--names", str(measured / "bench" / "exact.trace.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", lines[0].strip())[-1] == "predicted / measured" and "layers.*" in lines[1]
    differences = [abs(float(re.search(r"([+-][\d.e+-]+) ms", line)[1])) for line in lines[1:4]]
    assert differences == sorted(differences, reverse=True)
    assert re.match(r"all \d+ modules, without collectives: predicted ", lines[4])

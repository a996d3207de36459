"""The rank that the others wait for is named."""

from contextlib import nullcontext
from unittest import mock

import pytest
import torch

from monograph.errors import ConfigError
from monograph.execute.cudagraph import CudaGraphRecorder
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.train import slow_ranks
from monograph.train.slow_ranks import RankTime, SlowRankMonitor, find_slow_ranks
from tests.kit.ranks import pool
from tests.kit.runs import read_exact, read_records, tiny_run
from tests.kit.tiny import tiny
from tests.train.fault_work import train_with_slow_data, train_without_room

TIMED = {
    "metrics.rank_times_interval": 2,
    "training.steps": 4,
    "compile.mode": "graph",
    "metrics.slow_rank_limit": 3.0,
    "model.n_layers": 1,
}


def test_a_slow_rank_is_named_with_its_own_time_and_the_bits_stay(tmp_path):
    config = tiny("llama3", tmp_path / "slow", TIMED)
    assert pool.run(2, train_with_slow_data, config, 1, 0.5) == ["", ""]
    records = [record for record in read_records(tmp_path / "slow" / "run") if "rank_ms" in record]
    assert [record["step"] for record in records] == [2, 4]
    assert all(record["rank_ms"]["slowest_rank"] == 1 for record in records)
    assert all(record["rank_ms"]["slowest"] >= 500 for record in records)
    off = {"metrics.rank_times_interval": 0, "metrics.slow_rank_limit": 1.5}
    plain = tiny("llama3", tmp_path / "plain", {**TIMED, **off})
    pool.run(2, train_with_slow_data, plain, -1, 0.0)
    assert read_exact(tmp_path / "slow" / "run") == read_exact(tmp_path / "plain" / "run")
    assert not any("rank_ms" in record for record in read_records(tmp_path / "plain" / "run"))


def test_a_pipeline_rank_that_waits_for_a_slow_one_is_not_slow_itself(tmp_path):
    config = tiny("llama3", tmp_path, {**TIMED, "model.n_layers": 2}, pipeline_parallel_degree=2)
    assert pool.run(2, train_with_slow_data, config, 0, 0.5) == ["", ""]
    times = [record["rank_ms"] for record in read_records(tmp_path / "run") if "rank_ms" in record]
    assert [each["slowest_rank"] for each in times] == [0, 0]
    assert all(each["median"] < 0.8 * each["slowest"] for each in times), "of two it lies between both"


def test_a_slow_rank_is_told_once_with_its_host_and_again_when_it_is_gone():
    with joined_groups(Mesh(), torch.device("cpu")) as groups, mock.patch.object(slow_ranks, "log") as log:
        monitor = SlowRankMonitor(every=1, limit=1.5, groups=groups, device=torch.device("cpu"))
        for number, slow in enumerate((0.9, 0.9, 0.1), 1):
            monitor._tell(number, [RankTime(0.1, 0.8, "a"), RankTime(slow, 0.0, "node7"), RankTime(0.1, 0.8, "a")])
    said = [call[0] + ": " + call.args[0] % call.args[1:] for call in log.method_calls]
    assert len(said) == 2 and said[0].startswith("warning: step 1: slow ranks: rank 1 (node7) 900 ms")
    assert said[1].startswith("info: step 3: no rank")


def test_ranks_are_not_timed_where_a_step_op_by_op_does_not_fit(tmp_path):
    with joined_groups(Mesh(), torch.device("cpu")) as groups, mock.patch.object(slow_ranks, "log") as log:
        monitor = SlowRankMonitor(every=1, limit=1.5, groups=groups, device=torch.device("cpu"))
        assert [monitor.has_room(missing) for missing in (0, 3 << 29, 1)] == [True, False, False]
    (said,) = log.method_calls
    assert "rank 0 lacks 1.50 GiB of memory" in said.args[0] % said.args[1:]
    config = tiny("llama3", tmp_path, {**TIMED, "training.steps": 2})
    assert pool.run(2, train_without_room, config) == ["", ""]
    assert not any("rank_ms" in record for record in read_records(tmp_path / "run"))


def segment(stream, total, active, *, pool=(0, 0), device=3):
    return {
        "device": device,
        "stream": stream,
        "total_size": total,
        "active_size": active,
        "segment_pool_id": pool,
    }


def test_a_step_op_by_op_may_use_what_the_allocator_holds_for_its_stream():
    recorder = CudaGraphRecorder(torch.device("cuda", 3))
    recorder.needed_bytes, own, other = 100, 7, 8
    recorder.__dict__["stream"] = mock.Mock(cuda_stream=own)
    cases = {
        100: [],
        40: [segment(own, 90, 30)],
        70: [segment(other, 30, 0), segment(other, 50, 10)],
        0: [segment(own, 200, 20)],
        99: [segment(own, 500, 0, pool=(0, 1)), segment(own, 500, 0, device=0), segment(own, 1, 0)],
    }
    for missing, segments in cases.items():
        with (
            mock.patch("torch.cuda.mem_get_info", lambda device: (0, 1000)),
            mock.patch("torch.cuda.memory_snapshot", lambda segments=segments: segments),
        ):
            assert recorder.find_missing_memory() == missing


def test_what_an_earlier_phase_allocated_is_not_needed_by_a_step():
    recorder, memory = CudaGraphRecorder(torch.device("cuda", 3)), {"now": 30, "peak": 500}
    recorder.__dict__["stream"] = mock.Mock()

    def run():
        memory["peak"] = max(memory["peak"], 120)

    with mock.patch.multiple(
        "torch.cuda",
        memory_allocated=lambda device: memory["now"],
        max_memory_allocated=lambda device: memory["peak"],
        reset_peak_memory_stats=lambda device: memory.update(peak=memory["now"]),
        current_stream=lambda device: mock.Mock(),
        stream=lambda stream: nullcontext(),
    ):
        recorder.warm_up(run)
    assert recorder.needed_bytes == 120 - 30


def test_slow_is_relative_to_the_median_and_of_two_ranks_to_the_faster():
    def times(*own):
        return [RankTime(each, 0.0, "host") for each in own]

    assert find_slow_ranks(times(1.0, 1.1, 0.9, 1.6, 5.0), 1.4) == (4, 3)
    assert find_slow_ranks(times(1.0, 1.2, 1.1), 1.5) == ()
    assert find_slow_ranks(times(1.0, 1.6), 1.5) == (1,)


def test_limits_that_mean_nothing_are_refused(tmp_path):
    for changes in ({"metrics.rank_times_interval": -1}, {"metrics.slow_rank_limit": 1.0}):
        with pytest.raises(ConfigError):
            tiny_run(tmp_path, {"compile.mode": "graph", **changes})

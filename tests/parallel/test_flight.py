"""A rank that hangs is named, with the collective and the module that the others wait in."""

import json
import os
import re
import time

import pytest

from monograph.parallel.flight import FOLDER, describe_flights, read_flights, write_flight
from tests.kit.ranks import RankDied, pool
from tests.kit.tiny import tiny
from tests.parallel.rank_work import train_and_hang

TIMEOUT = 3.0


def test_the_others_abort_in_time_when_a_rank_stops_and_the_report_names_it(tmp_path):
    changes = {"compile.mode": "graph", "training.steps": 5, "model.n_layers": 1}
    config = tiny("llama3", tmp_path, {**changes, "parallelism.timeout_seconds": TIMEOUT})
    with pytest.raises(RankDied, match="rank 1 was killed by SIGKILL"):
        pool.run(2, train_and_hang, config, 1, 3, tmp_path)
    stopped, aborted = (float((tmp_path / name).read_text()) for name in ("stopped", "aborted"))
    assert aborted - stopped < TIMEOUT + 2
    folder = tmp_path / "run" / FOLDER
    lines = describe_flights(folder)
    assert lines[0] == "rank 1 left no report: it was stopped or killed, or its machine is gone"
    assert lines[1].startswith("rank 0 ("), lines
    assert re.search(r"in (layers\.0|head|embedding)[\w.]*, (forward|backward): _c10d_functional", lines[1]), lines
    assert read_flights(folder, since=time.time()) == {}


def make_report(rank, world_size, *entries, where=()):
    keys = ("group", "name", "number", "is_done")
    collectives = [dict(zip(keys, entry, strict=True)) | {"sizes": [[8]]} for entry in entries]
    common = {"rank": rank, "world_size": world_size, "host": f"node{rank}", "time": 1.0, "error": "RuntimeError: x"}
    common["is_broken"] = False
    return common | {"where": list(where), "collectives": collectives}


def write_reports(folder, *reports):
    for report in reports:
        (folder / f"rank-{report['rank']}.json").write_text(json.dumps(report))


def test_reports_say_who_waits_where_and_who_is_behind(tmp_path):
    done, waiting = ("tp", "nccl:all_reduce", 6, True), ("tp", "nccl:all_reduce", 7, False)
    where = ("in layers.1.attention, forward: all_reduce",)
    write_reports(tmp_path, make_report(0, 2, done, waiting, where=where), make_report(1, 2, done))
    lines = describe_flights(tmp_path)
    expected = "rank 0 (node0) waited in nccl:all_reduce number 7 over tp, sizes [[8]], in layers.1.attention, forward"
    assert lines[0].startswith(expected)
    assert "rank 1 (node1) was in no collective: RuntimeError: x" in lines
    assert "rank 1 is behind: 1 collectives over tp fewer than others" in lines


def test_a_damaged_report_is_passed_over_and_no_report_says_nothing(tmp_path):
    assert describe_flights(tmp_path) == []
    (tmp_path / "rank-0.json").write_text('{"rank": 0')
    assert describe_flights(tmp_path / "nowhere") == describe_flights(tmp_path) == []


def test_a_report_that_cannot_be_written_hides_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    write_flight(tmp_path / "file" / "below", 0, 2, RuntimeError("x"))


@pytest.mark.parametrize(
    "change", [{"world_size": 10**12}, {"time": "x"}, {"rank": 2}, {"collectives": [5]}, {"where": None}, {"host": []}]
)
def test_a_report_with_odd_values_is_passed_over(tmp_path, change):
    write_reports(tmp_path, make_report(0, 2, ("tp", "all_reduce", 6, True)))
    report = json.loads((tmp_path / "rank-0.json").read_text()) | change
    (tmp_path / "rank-0.json").write_text(json.dumps(report))
    (tmp_path / "rank-1.json").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "rank-3.json")
    assert describe_flights(tmp_path) == []


def test_a_report_cannot_write_lines_or_terminal_codes(tmp_path):
    write_reports(tmp_path, make_report(0, 1) | {"error": "x\n01:00:00 I all is well\x1b[2J"})
    assert "x\\n01:00:00 I all is well\\x1b[2J" in describe_flights(tmp_path)[0]

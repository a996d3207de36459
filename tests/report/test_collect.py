"""The report's data: curves that keep their peak, collectives and saved values that add up."""

import json

import pytest

from monograph.graph.cost import Cost
from monograph.passes.runner import PassRecord
from monograph.report.collect import MAX_LINES, collect_graph, collect_pass, thin_out
from monograph.report.saved import fold_saved, name_blocks
from tests.report.reports import FACTS, make_graph


def test_a_thinned_curve_has_few_points_and_keeps_its_peak():
    values = [index % 7 for index in range(9000)]
    values[4321] = 99
    points = thin_out(values, 2000)
    assert len(points) <= 2000
    assert [4321, 99] in points
    assert thin_out([5, 6], 2000) == [[0, 5], [1, 6]]


def test_the_report_of_a_graph_is_plain_data_that_adds_up():
    found = collect_graph(make_graph(), FACTS)
    assert json.loads(json.dumps(found)) == found
    assert found["memory"]["peak_bytes"] == found["cost"]["peak_bytes"] == max(p[1] for p in found["memory"]["points"])
    (gathers,) = found["collectives"]
    assert (gathers["role"], gathers["group"], gathers["direction"]) == ("param_all_gather", "g", "forward")
    assert (gathers["count"], gathers["bytes"]) == (3, 3 * 32)
    assert gathers["exposed_seconds"] == pytest.approx(found["cost"]["exposed_seconds"])
    assert found["timeline"]["exposed_seconds"] == pytest.approx(3 * (1 + 32 / 10))


def test_what_backward_reads_of_forward_is_saved_once_with_its_block():
    found = collect_graph(make_graph(), FACTS)
    assert [(each["block"], each["op"]) for each in found["saved"]] == [
        (block, op) for block in range(3) for op in ("all_gather_into_tensor", "mm")
    ]
    assert found["saved_by_block"] == [{"block": block, "bytes": 128} for block in range(3)]
    rows = found["saved_rows"]
    assert [(row["path"], row["block"], row["total_bytes"]) for row in rows] == [
        ("layers.*.work", "0..2", 192),
        ("layers.*.work", "0..2", 192),
    ]


def test_compute_that_waits_shows_as_a_gap_between_spans():
    lanes = {lane["name"]: lane["spans"] for lane in collect_graph(make_graph(), FACTS)["timeline"]["lanes"]}
    assert list(lanes) == ["compute", "g"]
    forward = [span for span in lanes["compute"] if span["direction"] == "forward"]
    assert [span["block"] for span in forward] == [0, 1, 2]
    assert forward[1]["start"] - forward[0]["end"] == pytest.approx(1 + 32 / 10)


def test_blocks_are_named_in_runs():
    assert name_blocks([]) == ""
    assert name_blocks([3]) == "3"
    assert name_blocks([2, 0, 1, 5]) == "0..2, 5"
    assert fold_saved([]) == []


def test_a_very_long_difference_ends_with_the_file_that_has_the_rest():
    cost = Cost(
        nodes=0, flops=0, collectives=0, moved_bytes=0, peak_bytes=0, communication_seconds=0.0, exposed_seconds=0.0
    )
    told = {"note": "", "options": {}, "seconds": 0.0, "added": 0, "removed": 0, "moved": 0}
    record = PassRecord(name="p", status="ran", before=cost, after=cost, **told)
    lines = collect_pass(record, diff="x\n" * (MAX_LINES + 7), files=("1.txt", "1.diff"))["diff"].splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "... 7 more lines in 1.diff"

"""The costliest ops of a report: equal ones folded, sums that add up, and what bounds each."""

import pytest

from monograph.annotate import Direction
from monograph.compat.ops import ATEN
from monograph.graph.facts import Facts
from monograph.report.collect import collect_graph
from monograph.report.costly_ops import MAX_ROWS
from tests.kit.by_hand import ByHand
from tests.kit.machines import SLOW
from tests.report.reports import FACTS, make_graph


def collect_ops(graph, facts=FACTS):
    return collect_graph(graph, facts)["ops"]


def test_equal_ops_of_all_blocks_are_one_row_with_their_sums():
    ops = collect_ops(make_graph(3))
    rows = {(row["op"], row["direction"]): row for row in ops["rows"]}
    matmul = rows["mm", "forward"]
    assert (matmul["path"], matmul["block"], matmul["count"]) == ("layers.*.work", "0..2", 3)
    assert matmul["flops"] == 3 * 2 * 4 * 4 * 4 and matmul["bytes"] == 3 * 3 * 64
    assert matmul["seconds"] == pytest.approx(3 * 1.28), "128 operations at 100 a second, three times"
    assert ops["rows"] == sorted(ops["rows"], key=lambda row: -row["seconds"])


def test_the_parts_of_a_step_add_up_to_its_time():
    report = collect_graph(make_graph(3), FACTS)
    total = report["timeline"]["total_seconds"]
    assert sum(report["ops"]["bounds"].values()) == pytest.approx(total)
    assert report["ops"]["bounds"]["waiting"] == pytest.approx(report["timeline"]["exposed_seconds"])
    shown = sum(row["seconds"] for row in report["ops"]["rows"]) + report["ops"]["others"]["seconds"]
    assert shown + report["timeline"]["exposed_seconds"] == pytest.approx(total)


def test_what_takes_longest_of_an_op_bounds_it():
    ops = {row["op"]: row for row in collect_ops(make_graph(1))["rows"]}
    assert (ops["mm"]["bound"], ops["mul"]["bound"]) == ("compute", "memory")
    assert ops["mm"]["peak_share"] == pytest.approx(1.0) and ops["mul"]["peak_share"] == 0.0
    late = Facts(machine=SLOW.__class__(**{**vars_of(SLOW), "kernel_latency_us": 1e7}), group_sizes={"g": 2})
    assert {row["bound"] for row in collect_ops(make_graph(1), late)["rows"]} == {"latency"}


def vars_of(machine):
    return {name: getattr(machine, name) for name in machine.__dataclass_fields__}


def test_many_rows_end_in_a_sum_of_the_others():
    hand = ByHand()
    x = hand.input("x", 4, 4)
    for number in range(MAX_ROWS + 5):
        x = hand.call(ATEN.relu.default, x, path=f"part{number}", direction=Direction.FORWARD)
    ops = collect_ops(hand.done(x))
    assert len(ops["rows"]) == MAX_ROWS and ops["others"]["rows"] == 5
    assert ops["others"]["seconds"] == pytest.approx(5 * 128 / 1000)


def test_mfu_is_the_ideal_time_over_the_estimated_one():
    graph = make_graph(2)
    total = collect_graph(graph, FACTS)["timeline"]["total_seconds"]
    assert collect_graph(graph, FACTS)["mfu"] is None
    assert collect_graph(graph, FACTS, ideal_seconds=total / 4)["mfu"] == pytest.approx(0.25)

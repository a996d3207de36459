"""Two streams, by hand: what runs when, and how long compute waits."""

import pytest

from monograph.compat.ops import ALL_GATHER, ATEN, WAIT_TENSOR
from monograph.graph.timeline import find_timeline
from tests.kit.by_hand import ByHand


def build(overlapped, groups=("g", "g")):
    """Two gathers, and compute that either hides them or does not."""
    hand = ByHand()
    x = hand.input("x", 4)
    work = lambda: hand.call(ATEN.neg.default, x)  # noqa: E731 - three equal nodes
    first = hand.call(ALL_GATHER, x, 2, groups[0])
    second = hand.call(ALL_GATHER, x, 2, groups[1])
    busy = work() if overlapped else None
    waits = [hand.call(WAIT_TENSOR, first), hand.call(WAIT_TENSOR, second)]
    busy = busy or work()
    graph = hand.done(busy)
    seconds = {first: 3.0, second: 5.0, busy: 6.0}
    return find_timeline(graph.module.graph, seconds), waits


def test_compute_waits_for_transfers_that_nothing_hides():
    timeline, _ = build(overlapped=False)
    assert timeline.exposed_seconds == pytest.approx(8.0)
    assert timeline.total_seconds == pytest.approx(14.0)


def test_compute_in_between_hides_a_transfer_and_the_rest_is_exposed():
    timeline, _ = build(overlapped=True)
    assert timeline.communication_seconds == pytest.approx(8.0)
    assert timeline.exposed_seconds == pytest.approx(2.0)
    assert timeline.total_seconds == pytest.approx(8.0)
    assert {span.lane: span.exposed_seconds for span in timeline.spans} == {"g": pytest.approx(2.0), "compute": 0.0}


def test_transfers_of_one_group_queue_and_those_of_two_run_at_once():
    timeline, _ = build(overlapped=False, groups=("g", "h"))
    assert timeline.exposed_seconds == pytest.approx(5.0)
    starts = {span.lane: span.start_seconds for span in timeline.spans}
    assert starts["g"] == starts["h"] == 0.0
    queued, _ = build(overlapped=False)
    assert [span.start_seconds for span in queued.spans if span.lane == "g"] == [0.0, 3.0]

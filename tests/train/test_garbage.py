"""Python's garbage collector runs when we say."""

import gc

import pytest

from monograph.run import train
from monograph.train.garbage import controlled_gc
from tests.kit.runs import tiny_run


@pytest.fixture
def collections():
    """The generations collected while a test runs."""
    seen = []

    def note(phase, info):
        if phase == "start":
            seen.append(info["generation"])

    gc.callbacks.append(note)
    yield seen
    gc.callbacks.remove(note)


def test_nothing_is_collected_but_at_the_interval(collections):
    with controlled_gc(3) as collect:
        assert not gc.isenabled()
        collections.clear()
        at = []
        for step in range(1, 8):
            garbage = [[] for _ in range(5000)]
            del garbage
            collect(step)
            at += [step] * len(collections)
            collections.clear()
    assert at == [3, 6]
    assert gc.isenabled()


def test_zero_leaves_pythons_own_timing():
    with controlled_gc(0) as collect:
        assert gc.isenabled()
        collect(1)


def test_the_collector_is_put_back_as_it_was_after_a_failure():
    with pytest.raises(ValueError, match="broken"), controlled_gc(3):
        raise ValueError("broken")
    assert gc.isenabled()
    gc.disable()
    try:
        with controlled_gc(3):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_run_collects_at_its_interval_only_and_leaves_the_collector_on(tmp_path, collections):
    train(tiny_run(tmp_path / "warm"))
    counts = {}
    for interval in (2, 1000):
        collections.clear()
        train(tiny_run(tmp_path / str(interval), {"training.gc_interval": interval, "training.steps": 6}))
        counts[interval] = collections.count(1)
    assert counts[2] - counts[1000] >= 2, "three collections of generation 1 more, give or take those of the set-up"
    assert gc.isenabled()

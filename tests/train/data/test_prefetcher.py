import gc
import itertools
import threading
import time

import pytest

from monograph.errors import DataError
from monograph.train.data.prefetcher import Prefetcher


def wait_until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return condition()


def find_threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_items_arrive_in_order_and_the_end_is_the_end():
    feeder = Prefetcher(lambda closing: iter(range(50)), depth=3)
    assert list(feeder) == list(range(50))
    with pytest.raises(StopIteration):
        next(feeder)


def test_no_more_than_the_depth_is_made_ahead():
    made = []

    def make(closing):
        for number in itertools.count():
            made.append(number)
            yield number

    with Prefetcher(make, depth=4) as feeder:
        assert wait_until(lambda: len(made) == 5)  # four on the shelf and one in hand
        time.sleep(0.05)
        assert len(made) == 5
        assert next(feeder) == 0
        assert wait_until(lambda: len(made) == 6)


def test_an_error_in_the_thread_is_raised_after_the_items_before_it():
    def make(closing):
        yield 1
        yield 2
        raise DataError("broken row", why="it is", do="repair it")

    with Prefetcher(make, depth=8) as feeder:
        assert [next(feeder), next(feeder)] == [1, 2]
        for _ in range(2):
            with pytest.raises(DataError, match="broken row"):
                next(feeder)


def test_closing_ends_a_thread_that_waits_for_room():
    feeder = Prefetcher(lambda closing: itertools.count(), depth=2, name="waits for room")
    next(feeder)
    feeder.close()
    feeder.close()
    assert not find_threads("waits for room")
    with pytest.raises(RuntimeError, match="closed"):
        next(feeder)


def test_closing_ends_a_thread_that_waits_for_the_network():
    def make(closing):
        closing.wait(60)
        return iter(())

    feeder = Prefetcher(make, depth=2, name="waits for the network")
    started = time.monotonic()
    feeder.close()
    assert not find_threads("waits for the network") and time.monotonic() - started < 5


def test_closing_wakes_a_consumer_that_waits():
    def make(closing):
        closing.wait(60)
        yield from ()

    feeder = Prefetcher(make, depth=2)
    answers = []

    def consume():
        try:
            next(feeder)
        except RuntimeError as error:
            answers.append(str(error))

    consumer = threading.Thread(target=consume)
    consumer.start()
    time.sleep(0.02)
    feeder.close()
    consumer.join(5)
    assert answers == ["the data feeder is closed"]


def test_a_dropped_feeder_ends_its_thread():
    feeder = Prefetcher(lambda closing: itertools.count(), depth=2, name="dropped")
    next(feeder)
    assert find_threads("dropped")
    del feeder
    gc.collect()
    assert wait_until(lambda: not find_threads("dropped"))


def test_items_are_made_while_the_consumer_is_busy():
    made = []

    def make(closing):
        for number in range(4):
            made.append(number)
            yield number

    with Prefetcher(make, depth=4) as feeder:
        assert wait_until(lambda: made == [0, 1, 2, 3]), "before the first is taken"
        assert list(feeder) == [0, 1, 2, 3]

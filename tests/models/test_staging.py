"""Values on their way to a GPU: a buffer is not filled again before its copy has ended. Here with a pretended GPU."""

from types import SimpleNamespace

import pytest
import torch

from monograph.models import staging


class LateStream:
    """Does what it was asked for when somebody waits, and not before."""

    def __init__(self, device):
        self.asked, self.waited_for = [], []

    def wait_stream(self, other):
        self.waited_for.append(other)

    def do_first(self, count):
        for _ in range(count):
            self.asked.pop(0)()

    def synchronize(self):
        self.do_first(len(self.asked))


class LateTarget:
    """A tensor of a GPU whose copies run late."""

    dtype, shape = torch.bfloat16, (3, 2)

    def __init__(self, stream):
        self.stream, self.value = stream, None

    def numel(self):
        return 6

    def element_size(self):
        return 2

    def copy_(self, place, *, non_blocking):
        assert non_blocking
        self.stream.asked.append(lambda: setattr(self, "value", place.clone()))


@pytest.fixture
def streams(monkeypatch):
    """The streams that were made; an event waits for what its stream was asked for before."""
    made = []

    class Event:
        stream = None

        def record(self):
            self.is_over, self.stream = [], made[-1]
            self.stream.asked.append(lambda marks=self.is_over: marks.append(True))

        def synchronize(self):
            while self.stream is not None and not self.is_over:
                self.stream.do_first(1)

    class Scope:
        def __init__(self, stream):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    def make(device):
        made.append(LateStream(device))
        return made[-1]

    plain = torch.empty
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(Stream=make, Event=Event, stream=Scope))
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory, **how: plain(*size, **how))
    return made


def test_every_value_arrives_though_copies_run_late(streams):
    targets = []
    with staging.staging_on("cuda", 64, after="main") as buffers:
        for number in range(7):
            targets.append(LateTarget(streams[0]))
            place = buffers.find_place(targets[-1])
            assert place.shape == (3, 2) and place.dtype is torch.bfloat16
            place.fill_(number)
            buffers.send(place, targets[-1])
            assert targets[-1].value is None, "this copy has not even begun"
    assert streams[0].waited_for == ["main"]
    assert [target.value.unique().item() for target in targets] == list(range(7))


def test_copies_have_ended_even_when_something_failed(streams):
    with pytest.raises(MemoryError), staging.staging_on("cuda", 64, after="main") as buffers:
        target = LateTarget(streams[0])
        buffers.send(buffers.find_place(target).fill_(5), target)
        raise MemoryError
    assert (target.value == 5).all()

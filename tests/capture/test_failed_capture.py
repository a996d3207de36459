"""A capture that fails leaves nothing behind that the next one could stumble over."""

import gc

import pytest
import torch

from monograph.graph.tags import tag_of
from tests.passes.chunk_toys import Plain, capture_stack

held = []
"""The error of a failed capture, with the frames that were running: as one that is to be shown later."""


class Failing(Plain):
    def forward(self, x):
        raise ArithmeticError("as planned")


class Forgetting(Plain):
    """The error is forgotten, and with it whatever it kept alive, in the middle of the next capture."""

    def forward(self, x):
        held.clear()
        gc.collect()
        return super().forward(x)


def fail():
    try:
        capture_stack(Failing)
    except ArithmeticError as error:
        held.append(error)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_module_that_raises_leaves_no_annotations_open():
    fail()
    assert held
    assert "custom" not in torch.fx.traceback.current_meta
    graph, _ = capture_stack(Forgetting)
    assert not held
    paths = {tag_of(node).path for node in graph.nodes if node.target is torch.ops.aten.relu.default}
    assert paths == {"layers.0"}

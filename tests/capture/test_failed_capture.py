"""A capture that fails says why, and leaves nothing behind that the next one could stumble over."""

import gc
from unittest.mock import patch

import pytest
import torch

from monograph.capture.failure import CaptureError
from monograph.graph.tags import tag_of
from monograph.models.feed_forward import FeedForward
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from tests.execute.updates import CPU
from tests.kit.capture import prepare
from tests.kit.tiny import tiny
from tests.passes.chunk_toys import Plain, capture_stack

HONEST = FeedForward.forward
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


def branch(self, x):
    y = HONEST(self, x)
    return y if y.sum() > 0 else -y


def drop_out(self, x):
    return torch.nn.functional.dropout(HONEST(self, x), 0.5, training=True)


def write_input(self, x):
    y = HONEST(self, x)
    z = y.view(-1)
    y.add_(1)
    return y + z.view_as(y)


def use_numpy(self, x):
    return torch.from_numpy(x.detach().numpy()) + x


def leave_weights_out(self, x):
    return x * 2


@pytest.mark.parametrize(
    ("forward", "what"),
    [
        (branch, "of layers.0.feed_forward cannot be captured: return y if y.sum() > 0 else -y"),
        (drop_out, "of layers.0.feed_forward cannot be captured"),
        (write_input, "writes in place"),
        (leave_weights_out, "does not depend on layers.0.feed_forward.w1.weight, layers.0.feed_forward.w2.weight"),
        (use_numpy, "of layers.0.feed_forward cannot be captured: return torch.from_numpy(x.detach().numpy()) + x"),
    ],
)
def test_a_model_that_cannot_be_captured_is_told_the_op_the_module_the_line_and_eager_mode(forward, what, tmp_path):
    config = tiny("llama3", tmp_path, {"compile.mode": "graph"})
    is_patched = patch.object(FeedForward, "forward", forward)
    with is_patched, fake_groups(Mesh(), 0, CPU) as groups, pytest.raises(CaptureError) as error:
        prepare(config, groups).capture()
    assert what in str(error.value)
    assert error.value.do.endswith("--compile.mode eager") and error.value.exit_code == 2

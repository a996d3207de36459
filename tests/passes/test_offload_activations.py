"""offload_activations: kept values travel to the host and back, in time, and their views are made again there."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from monograph.compat.ops import ATEN
from monograph.graph.host_copy import FROM_HOST, TO_HOST, WAIT_COPY
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from tests.passes.written import BACKWARD, ByHand, check_text, run

MUCH = PassesConfig(offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=1))


def two_blocks():
    """Block 0 keeps a value and a view of it for its backward, which runs after that of block 1."""
    hand = ByHand()
    x = hand.input("w", 4, 4)
    kept = hand.call(ATEN.silu.default, x, path="layers.0")
    view = hand.call(ATEN.view.default, kept, [16], path="layers.0")
    next_one = hand.call(ATEN.exp.default, kept, path="layers.1")
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.dot.default, view, view, path="layers.1"), path="head")
    later = hand.call(ATEN.mul.Tensor, next_one, 2, path="layers.1", direction=BACKWARD)
    flat = hand.call(ATEN.mul.Tensor, view, 3, path="layers.0", direction=BACKWARD)
    back = hand.call(ATEN.view.default, flat, [4, 4], path="layers.0", direction=BACKWARD)
    total = hand.call(ATEN.add.Tensor, back, later, path="layers.0", direction=BACKWARD)
    return hand.done(loss, w=hand.call(ATEN.mul.Tensor, total, kept, path="layers.0", direction=BACKWARD))


def test_a_kept_value_comes_back_one_block_before_it_is_needed():
    graph = two_blocks()
    run("offload_activations", graph, MUCH)
    check_text(
        graph,
        """
        forward block 0:
          0: float32[4, 4] = silu(%w)  # layers.*
          1: float32[4, 4] = monograph.to_host(f.0)  # layers.* by offload_activations
          2: float32[16] = view(f.0, [16])  # layers.*
        forward block 1: (in0 = f-1.0, in1 = f-1.2)
          0: float32[4, 4] = exp(in0)  # layers.*
          1: float32[] = dot(in1, in1)  # layers.*
        forward:
          0: float32[] = sum(f1.1)  # head
        backward block 0:
          0: float32[4, 4] = monograph.from_host(f.1, cpu)  # layers.* by offload_activations
        backward block 1:
          0: float32[4, 4] = mul.Tensor(f.0, 2)  # layers.*
        backward block 0: (in0 = b+1.0)
          1: float32[4, 4] = monograph.wait_copy(b.0)  # layers.* by offload_activations
          2: float32[16] = view(b.1, [16])  # layers.* by offload_activations
          3: float32[16] = mul.Tensor(b.2, 3)  # layers.*
          4: float32[4, 4] = view(b.3, [4, 4])  # layers.*
          5: float32[4, 4] = add.Tensor(b.4, in0)  # layers.*
          6: float32[4, 4] = mul.Tensor(b.5, b.1)  # layers.*
        backward:
          return f.0, b0.6
        """,
    )


def test_the_last_block_and_small_values_stay_and_a_budget_is_a_limit():
    for options in ({"budget_gib": 1.0, "min_bytes": 65}, {"budget_gib": 63 / 2**30, "min_bytes": 1}):
        graph = two_blocks()
        before = graph.text()
        said = run("offload_activations", graph, PassesConfig(offload_activations=OffloadActivationsConfig(**options)))
        assert said.startswith("0 values")
        assert graph.text() == before


def test_a_copy_has_the_strides_of_its_value_also_along_dimensions_of_size_1():
    value = torch.arange(24.0).as_strided((1, 1, 6, 4), (24, 4, 4, 1))
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(value)
        recorded = WAIT_COPY(FROM_HOST(TO_HOST(fake), "cpu")).stride()
    back = WAIT_COPY(FROM_HOST(TO_HOST(value), "cpu"))
    assert back.stride() == recorded == value.stride() and torch.equal(back, value)

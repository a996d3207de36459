"""Live memory: counted by hand, and compared with what a real run allocates."""

import gc
import operator

import pytest
import torch

from monograph.compat.ops import ALL_GATHER, ATEN, WAIT_TENSOR
from monograph.graph.memory import find_memory
from monograph.kernels import chunked_cross_entropy_on_gpu
from monograph.kernels.chunked_cross_entropy import CHUNKED_CROSS_ENTROPY
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from tests.graph.test_graph_step import CPU, make_batch, shallow
from tests.kit.by_hand import ByHand
from tests.kit.capture import prepare
from tests.kit.peak import PeakBytes


def test_a_value_lives_from_its_making_to_its_last_reader():
    hand = ByHand()
    x = hand.input("x", 100)  # 400 bytes, always there
    a = hand.call(ATEN.neg.default, x)  # + 400
    b = hand.call(ATEN.cat.default, [a, a])  # + 800; then a is gone
    c = hand.call(ATEN.sum.default, b)  # + 4; then b is gone
    memory = find_memory(hand.done(c))
    assert memory.live_bytes == [400, 800, 1600, 1204, 404]
    assert (memory.peak_bytes, memory.peak_index) == (1600, 2)
    assert [(each.node, each.bytes) for each in memory.largest_at_peak(2)] == [(b, 800), (x, 400)]


def test_a_view_keeps_the_memory_it_looks_at_and_has_none_of_its_own():
    hand = ByHand()
    a = hand.call(ATEN.neg.default, hand.input("x", 100))
    view = hand.call(ATEN.view.default, a, [10, 10])
    other = hand.call(ATEN.ones.default, [50])
    loss = hand.call(ATEN.sum.default, view)
    assert find_memory(hand.done(loss, x=other)).live_bytes == [400, 800, 800, 1000, 1004, 604]


def test_parts_of_a_list_die_one_by_one():
    hand = ByHand()
    pair = hand.call(ATEN.topk.default, hand.input("x", 100), 50)  # 200 bytes of values, 400 of places
    values, indices = (hand.call(operator.getitem, pair, i) for i in range(2))
    total = hand.call(ATEN.sum.default, indices)  # then the places are gone
    loss = hand.call(ATEN.sum.default, values)
    assert find_memory(hand.done(loss, x=total)).live_bytes == [400, 1000, 1000, 1000, 1008, 612, 412]


def test_what_a_transfer_sends_stays_until_it_was_waited_for():
    hand = ByHand()
    a = hand.call(ATEN.neg.default, hand.input("x", 100))
    launch = hand.call(ALL_GATHER, a, 2, "g")  # 800 bytes
    one = hand.call(ATEN.ones.default, [1])
    done = hand.call(WAIT_TENSOR, launch)
    loss = hand.call(ATEN.add.Tensor, hand.call(ATEN.sum.default, done), one)
    assert find_memory(hand.done(loss)).live_bytes == [400, 800, 1600, 1604, 1604, 1208, 412, 404]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("chunk_tokens", [8, 40, 64])
def test_a_chunked_loss_takes_the_memory_it_is_counted_with(monkeypatch, dtype, chunk_tokens):
    """One chunk, and several with fewer and more logits than the weight has elements; kernels that write in place do
    nothing here, where there is no GPU."""
    for name in ("cross_entropy_", "add_matmul_"):
        monkeypatch.setattr(chunked_cross_entropy_on_gpu, name, lambda *args, **settings: None)
    tokens, dim, vocab = 64, 32, 1000
    hand = ByHand()
    shapes = {"hidden": (tokens, dim), "weight": (vocab, dim)}
    inputs = [hand.input(name, *shape, dtype=dtype) for name, shape in shapes.items()]
    rest = [hand.input("labels", tokens, dtype=torch.int64), hand.input("scale")]
    made = hand.call(CHUNKED_CROSS_ENTROPY, *inputs, *rest, chunk_tokens)
    counted = find_memory(hand.done(hand.call(operator.getitem, made, 0))).live_bytes
    values = [torch.zeros(shape, dtype=dtype) for shape in shapes.values()]
    values += [torch.zeros(tokens, dtype=torch.int64), torch.ones(())]
    with torch.no_grad(), PeakBytes(values) as watch:
        chunked_cross_entropy_on_gpu.chunked_cross_entropy(*values, chunk_tokens)
    losses = 4 * tokens
    assert 0 <= watch.peak - (counted[4] - counted[3]) <= losses


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        pytest.param("llama3_debugmodel", False, marks=pytest.mark.long),
        ("qwen3_debugmodel_moe", True),
        pytest.param("llama3_debugmodel", True, marks=pytest.mark.long),
        pytest.param("qwen3_debugmodel_moe", False, marks=pytest.mark.long),
    ],
)
def test_the_estimate_is_close_to_what_a_run_allocates(recipe, passes):
    with joined_groups(Mesh(), CPU) as groups:
        config = shallow(recipe, "graph")
        config = config.replace(training=config.training.replace(seq_len=128))
        prepared = prepare(config, groups, make_batch(0, length=128), valid_tokens=256)
        graph = prepared.capture_and_pass().graph if passes else prepared.capture()
        bound = [prepared.inputs.get(spec) for spec in graph.inputs]
        gc.collect()
        with torch.no_grad(), PeakBytes(bound) as counted:
            graph.module(*bound)
        estimate = find_memory(graph)
        given = sum(each.nbytes for each in bound)
        assert estimate.peak_bytes - given == pytest.approx(counted.peak, rel=0.05)


def test_lists_of_views_have_no_memory_of_their_own():
    hand = ByHand()
    parts = hand.call(ATEN.split.Tensor, hand.input("x", 100), 50)
    half = hand.call(operator.getitem, parts, 0)
    assert find_memory(hand.done(hand.call(ATEN.sum.default, half))).live_bytes == [400, 400, 400, 404, 404]

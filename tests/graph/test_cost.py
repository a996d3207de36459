"""The estimate of a step's cost: numbers that can be worked out by hand, worked out by hand."""

import time

import pytest
import torch

from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ATEN, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.attention_scores import find_scores, find_visible_share
from monograph.graph.cost import count_sent, find_compute_seconds, find_node_costs, measure
from monograph.graph.facts import Facts
from monograph.graph.flops import count_flops
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import is_backward
from monograph.kernels.attention import ATTENTION, ATTENTION_BACKWARD, KERNELS
from monograph.machine.table import MACHINES
from monograph.models.attention_kind import AttentionKind, read_kind
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from tests.graph.test_graph_step import CPU, make_batch, shallow
from tests.kit.by_hand import ByHand
from tests.kit.capture import prepare
from tests.kit.machines import SLOW


def traced(recipe, mesh, rank=0, layers=3):
    """The graph of one rank of a fake mesh, before any pass."""
    with fake_groups(mesh, rank, CPU) as groups:
        return prepare(shallow(recipe, "graph", layers), groups, make_batch(0)).capture()


def flops_of(op, *shapes, dtype=torch.float32, **kwargs):
    hand = ByHand()
    inputs = [hand.input(f"x{i}", *shape, dtype=dtype) for i, shape in enumerate(shapes)]
    node = hand.call(op, *inputs, **kwargs)
    return count_flops(node, LikelySizes(hand.graph))


def test_matmuls_count_two_operations_for_every_multiplication():
    assert flops_of(ATEN.mm.default, (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert flops_of(ATEN.addmm.default, (7,), (3, 5), (5, 7)) == 2 * 3 * 5 * 7
    assert flops_of(ATEN.bmm.default, (4, 3, 5), (4, 5, 7)) == 4 * 2 * 3 * 5 * 7
    assert flops_of(ATEN.add.Tensor, (3, 5), (3, 5)) == 0


def test_grouped_matmuls_count_each_row_once_whatever_its_group():
    hand = ByHand()
    rows, weights = (hand.input(n, *s, dtype=torch.bfloat16) for n, s in (("a", (64, 32)), ("b", (4, 32, 16))))
    ends = hand.input("ends", 4, dtype=torch.int32)
    forward = hand.call(ATEN._grouped_mm.default, rows, weights, ends)
    grads = hand.input("g", 64, 16, dtype=torch.bfloat16)
    turned = hand.call(ATEN.t.default, rows)
    weight_gradient = hand.call(ATEN._grouped_mm.default, turned, grads, ends)
    sizes = LikelySizes(hand.graph)
    assert count_flops(forward, sizes) == 2 * 64 * 32 * 16
    assert count_flops(weight_gradient, sizes) == 2 * 64 * 32 * 16


def test_attention_counts_every_query_with_every_key_and_five_matmuls_in_backward():
    hand = ByHand()
    q, k = (hand.input(name, 2, 3, 16, 8) for name in ("q", "k"))
    v = hand.input("v", 2, 3, 16, 4)
    op = ATEN._scaled_dot_product_flash_attention_for_cpu
    forward = hand.call(op.default, q, k, hand.input("w", 2, 3, 16, 8), 0.0, True)
    scores = 2 * 3 * 16 * 16
    assert count_flops(forward, LikelySizes(hand.graph)) == 2 * scores * (8 + 8)
    wide = hand.graph.call_function(op.default, (q, k, v, 0.0, True))
    back = hand.graph.call_function(ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default, (v, q, k, v))
    assert count_flops(wide, LikelySizes(hand.graph)) == 2 * scores * (8 + 4)
    assert count_flops(back, LikelySizes(hand.graph)) == 2 * scores * (3 * 8 + 2 * 4)


def test_attention_as_one_op_counts_the_same():
    hand = ByHand()
    q, k = (hand.input(name, 2, 16, 3, 8) for name in ("q", "k"))
    v, lse = hand.input("v", 2, 16, 3, 4), hand.input("lse", 2, 3, 16)
    scores, rest = 2 * 3 * 16 * 16, (0.3, True, 0, 0, 0.0)
    forward = hand.graph.call_function(ATTENTION, (q, k, v, None, None, *rest))
    backward = hand.graph.call_function(ATTENTION_BACKWARD, (v, q, k, v, None, None, v, lse, *rest))
    assert count_flops(forward, LikelySizes(hand.graph)) == 2 * scores * (8 + 4)
    assert count_flops(backward, LikelySizes(hand.graph)) == 2 * scores * (3 * 8 + 2 * 4)


def test_our_attention_kernels_take_longer_than_cudnns():
    hand, machine = ByHand(), MACHINES["H200"]
    q, lse = hand.input("q", 1, 4096, 8, 64), hand.input("lse", 1, 8, 4096)
    table = hand.input("table", 1, 2, 9)

    def seconds(segments, window, kernel, cap=0.0):
        rule = (0.3, True, window, KERNELS.index(kernel), cap)
        back = hand.graph.call_function(ATTENTION_BACKWARD, (q, q, q, q, segments, None, q, lse, *rule))
        ahead = hand.graph.call_function(ATTENTION, (q, q, q, segments, None, *rule))
        sizes = LikelySizes(hand.graph)
        return [find_compute_seconds(each, sizes, machine, 10**12) for each in (ahead, back)]

    fast, exact, packed = seconds(None, 0, "fastest"), seconds(None, 0, "auto"), seconds(table, 0, "fastest")
    assert seconds(None, 0, "fastest", cap=50.0) == packed
    assert seconds(None, 0, "cudnn") == fast and exact[0] == fast[0]
    assert exact[1] == packed[1] == pytest.approx(1.4 * fast[1]) and packed[0] == pytest.approx(1.4 * fast[0])


def test_a_tiny_llama_costs_what_its_layers_say():
    config = load_recipe("llama3_debugmodel").model
    layers, tokens, length = 2, 2 * 32, 32
    graph = traced("llama3_debugmodel", Mesh(), layers=layers)
    head = config.dim // config.attention.n_heads
    weights = config.dim * head * (2 * config.attention.n_heads + 2 * config.attention.n_kv_heads)
    weights += 3 * config.dim * config.feed_forward.hidden_dim
    scores = config.attention.n_heads * head * tokens * length
    expected = layers * (6 * tokens * weights + (4 + 10) * scores) + 6 * tokens * config.dim * config.vocab_size
    assert measure(graph, Facts()).flops == expected


@pytest.mark.parametrize(
    ("op", "extra", "sent"),
    [
        (ALL_GATHER, (4, "g"), 4 * 64 * 3 // 4),
        (REDUCE_SCATTER, ("sum", 4, "g"), 64 * 3 // 4),
        (ALL_REDUCE, ("sum", "g"), 2 * 64 * 3 // 4),
        (ALL_TO_ALL, ([1, 1, 1, 1], [1, 1, 1, 1], "g"), 64 * 3 // 4),
    ],
)
def test_a_transfer_sends_what_a_ring_sends(op, extra, sent):
    hand = ByHand()
    launch = hand.call(op, hand.input("x", 4, 4), *extra)
    assert count_sent(launch, LikelySizes(hand.graph), 4) == sent


def test_a_rank_that_is_alone_in_its_group_sends_nothing():
    hand = ByHand()
    launch = hand.call(ALL_GATHER, hand.input("x", 4, 4), 1, "g")
    loss = hand.call(WAIT_TENSOR, launch)
    cost = measure(hand.done(loss), Facts(machine=SLOW))
    assert (cost.collectives, cost.moved_bytes, cost.communication_seconds) == (1, 0, 0.0)


def test_compute_is_bound_by_operations_or_by_memory():
    hand = ByHand()
    x = hand.input("x", 10, 10)
    matmul = hand.call(ATEN.mm.default, x, x)  # 2000 operations at 100/s
    launch = hand.call(ALL_REDUCE, matmul, "sum", "g")  # 400 bytes, twice, half of them: 1 + 400/10 s
    total = hand.call(ATEN.add.Tensor, matmul, x)  # three times 400 bytes at 1000/s
    done = hand.call(WAIT_TENSOR, launch)
    cost = measure(
        hand.done(hand.call(ATEN.view.default, done, [100]), x=total), Facts(machine=SLOW, group_sizes={"g": 2})
    )
    assert cost.flops == 2000
    assert cost.communication_seconds == pytest.approx(41.0)
    assert cost.exposed_seconds == pytest.approx(41.0 - 1.2)


def seconds_of(facts, dtype=torch.float32):
    """Of a matmul that is bound by its operations, and of a collective (None among one rank)."""
    hand = ByHand()
    x = hand.input("x", 4096, 4096, dtype=dtype)
    matmul = hand.call(ATEN.mm.default, x, x)
    launch = hand.call(ALL_REDUCE, matmul, "sum", "g")
    costs = find_node_costs(hand.graph, LikelySizes(hand.graph), facts)
    return costs.seconds[matmul], costs.seconds.get(launch)


def test_a_matmul_takes_as_long_as_the_machine_needs_for_its_dtype():
    h100, b200 = (Facts(machine=MACHINES[name]) for name in ("H100", "B200"))
    flops = 2 * 4096**3
    assert seconds_of(h100, torch.bfloat16)[0] == pytest.approx(flops / (0.74 * 989e12) + 3e-6)
    assert seconds_of(h100, torch.float32)[0] == pytest.approx(flops / (0.74 * 67e12) + 3e-6)
    assert seconds_of(b200, torch.bfloat16)[0] == pytest.approx(flops / (0.74 * 2250e12) + 3e-6)


def test_a_group_within_a_node_uses_its_links_and_one_beyond_it_the_network():
    h100 = MACHINES["H100"]
    near, far = (Facts(machine=h100, group_sizes={"g": 2}, group_spans={"g": span}) for span in (8, 9))
    sent = 4096 * 4096 * 4
    assert seconds_of(near)[1] == pytest.approx(10e-6 + sent / 450e9)
    assert seconds_of(far)[1] == pytest.approx(20e-6 + sent / 50e9)
    assert seconds_of(Facts(machine=h100, group_sizes={"g": 2}))[1] == seconds_of(near)[1], "next to each other"


@pytest.mark.long
def test_rows_of_unknown_number_are_taken_to_be_routed_evenly():
    """Without data nobody knows the routing; counting such rows as one would lose most of the model."""
    alone = measure(traced("deepseek_v3_debugmodel", Mesh(), layers=2), Facts())
    spread = measure(traced("deepseek_v3_debugmodel", Mesh(dp_shard=2, ep=2), layers=2), Facts())
    assert spread.flops == alone.flops


def time_per_node(graph):
    """The best of three: seconds of the processor."""
    found = []
    for _ in range(3):
        start = time.process_time()
        cost = measure(graph, Facts())
        found.append((time.process_time() - start) / cost.nodes)
    return min(found)


def test_measuring_is_linear_so_that_it_can_be_done_after_every_pass():
    few, many = (time_per_node(traced("llama3_debugmodel", Mesh(dp_shard=2), layers=layers)) for layers in (2, 8))
    assert many < 2 * few, "four times the layers"


@pytest.mark.parametrize(
    ("queries", "keys", "is_causal", "window", "chunk"),
    [
        (64, 64, False, 0, 0),
        (64, 64, True, 0, 0),
        (16, 64, True, 0, 0),
        (64, 64, True, 8, 0),
        (16, 64, True, 8, 0),
        (16, 64, True, 60, 0),
        (64, 64, True, 0, 16),
        (64, 64, True, 0, 24),
        (64, 64, False, 0, 24),
        (32, 64, True, 0, 16),
    ],
)
def test_the_share_of_scores_that_a_mask_leaves_is_counted_one_by_one(queries, keys, is_causal, window, chunk):
    first = keys - queries
    seen = [
        (query, key)
        for query in range(queries)
        for key in range(keys)
        if not is_causal or (key <= query + first and (not window or key > query + first - window))
        if not chunk or key // chunk == (query + first) // chunk
    ]
    kind = AttentionKind("", causal=is_causal, window=window, chunk=chunk)
    assert read_kind(kind.describe()) == kind
    share = find_visible_share(first, keys, kind)
    assert share == pytest.approx(len(seen) / (queries * keys), abs=1.01 / keys)


ONE_RANK = Mesh()


def attention_nodes(config, mesh=ONE_RANK, is_wanted=lambda node: not is_backward(node)):
    """Forward attentions as (operations, the share of them that the mask leaves), and all tokens of the batch."""
    with fake_groups(mesh, 0, CPU) as groups:
        graph = prepare(config, groups, make_batch(0)).capture()
    sizes = LikelySizes(graph.module.graph)
    found = [node for node in graph.nodes if is_wanted(node) and find_scores(node, sizes) is not None]
    return [(count_flops(node, sizes), find_scores(node, sizes).seen_share) for node in found], 2 * 32


@pytest.mark.parametrize(
    ("recipe", "gather"),
    [
        ("llama3_debugmodel", "auto"),
        pytest.param("deepseek_v3_debugmodel", "latent", marks=pytest.mark.long),
        pytest.param("gpt_oss_debugmodel", "auto", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("degree", [2, pytest.param(4, marks=pytest.mark.long)])
def test_context_parallel_ranks_take_an_equal_part_of_the_time_of_attention(recipe, gather, degree):
    """Slices are balanced: whichever of them a rank has, the pairs that it sees are its part of all that are seen."""
    config = shallow(recipe, "graph", layers=2)
    totals = []
    for mesh in (Mesh(), Mesh(cp=degree, cp_gather=gather)):
        nodes, _ = attention_nodes(config, mesh, is_wanted=lambda node: True)
        totals.append(sum(flops * share for flops, share in nodes))
    assert totals[1] == pytest.approx(totals[0] / degree)


@pytest.mark.parametrize(
    ("recipe", "size", "kernel"),
    [
        ("gpt_oss_debugmodel", "window", "auto"),
        pytest.param("llama4_debugmodel", "chunk", "auto", marks=pytest.mark.long),
        ("llama4_debugmodel", "chunk", "flex"),
        pytest.param("llama3_debugmodel", "", "flex", marks=pytest.mark.long),
    ],
)
def test_attention_counts_keys_in_reach_and_takes_the_time_of_those_seen(recipe, size, kernel):
    """As the model counts them for MFU, from its modules."""
    config = shallow(recipe, "graph", layers=2)
    model = config.model.replace(**({size: 12} if size else {}))
    config = config.replace(model=model.replace(attention=model.attention.replace(kernel=kernel)))
    nodes, tokens = attention_nodes(config)
    with torch.device("meta"):
        expected = config.model.build().flops(32)
    assert len(nodes) == 2
    assert sum(flops for flops, _ in nodes) == pytest.approx(tokens * expected.attention / 3)
    assert sum(flops * share for flops, share in nodes) == pytest.approx(tokens * expected.seen / 3)


def test_a_mask_function_of_the_user_counts_all_keys():
    config = shallow("llama3_debugmodel_flex", "graph")
    attention = config.model.attention.replace(kernel="flex", mask_mod=see_itself)
    nodes, tokens = attention_nodes(config.replace(model=config.model.replace(attention=attention)))
    with torch.device("meta"):
        whole = config.model.build().flops(32).attention
    assert sum(flops for flops, _ in nodes) == pytest.approx(tokens * whole / 3)
    assert {share for _, share in nodes} == {1.0}


def see_itself(batch, head, query, key):
    return query == key

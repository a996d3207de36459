"""gather_float8: weights with one scale are sent in float8, and no bit changes."""

import operator

import pytest
import torch

from monograph.annotate import Role
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ATEN, WAIT_TENSOR
from monograph.config.leaves import replace_leaf
from monograph.graph.facts import Facts
from monograph.graph.invariants import check_properties, find_communication_invariants
from monograph.graph.memory import find_memory
from monograph.graph.query import is_backward, value_of
from monograph.graph.refuse import GraphError
from monograph.graph.tags import tag_of
from monograph.graph.verify_collectives import check_collectives
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_MATMUL
from monograph.kernels.float8_shards import FLOAT8_AMAX, FLOAT8_CAST_KNOWN
from monograph.parallel.mesh import Mesh
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.eager_float8 import plan
from tests.execute.updates import differences, on_ranks
from tests.kit.pipelines import capture_small
from tests.kit.ranks import pool
from tests.passes.written import BACKWARD, ByHand, check_text, run

E4M3 = torch.float8_e4m3fn
BF16 = {
    "training.compute_dtype": "bfloat16",
    "model.dim": 64,
    "model.n_layers": 1,
    "parallelism.reshard_after_forward": False,
}
FLOAT8 = {
    "compile.mode": "graph",
    "compile.numerics": "float8",
    "parallelism.fsdp": "graph",
    "model.n_layers": 1,
    "passes.quantize_matmuls.recipe": "tensorwise",
}


def gather(hand, name, *shape):
    """A parameter of two ranks, gathered in bfloat16."""
    moved = {"role": Role.PARAM_ALL_GATHER, "slot": name}
    narrow = hand.call(ATEN._to_copy.default, hand.input(name, *shape), dtype=torch.bfloat16, **moved)
    return hand.call(WAIT_TENSOR, hand.call(ALL_GATHER, narrow, 2, "fsdp_gather", **moved), **moved)


def square(hand, value, *, is_transposed=False, is_rowwise=False, **given):
    """A float8 matmul of a matrix with itself."""
    cast = hand.call(FLOAT8_CAST, value, E4M3, is_rowwise, is_transposed, **given)
    numbers, scales = (hand.call(operator.getitem, cast, index, **given) for index in (0, 1))
    return hand.call(FLOAT8_MATMUL, numbers, numbers, scales, scales, True, **given)


def test_ranks_agree_on_a_scale_and_gather_bytes():
    hand = ByHand()
    w = gather(hand, "w", 16, 32)
    loss = hand.call(ATEN.sum.default, square(hand, w))
    graph = hand.done(loss, w=square(hand, w, is_transposed=True, direction=BACKWARD))
    assert run("gather_float8", graph) == "1 parameter in 1 all_gather sent in float8"
    check_text(
        graph,
        """
        forward:
          0: float32[1] = monograph.float8_amax(%w)  # param_amax by gather_float8
          1: float32[1] = cat([f.0])  # param_amax by gather_float8
          2: int32[1] = view.dtype(f.1, int32)  # param_amax by gather_float8
          3: int32[1] = all_reduce(f.2, max, fsdp_gather)  <<  # param_amax by gather_float8
          4: int32[1] = wait_tensor(f.3)  # param_amax by gather_float8
          5: float32[1] = view.dtype(f.4, float32)  # param_amax by gather_float8
          6: 1 value = split_with_sizes(f.5, [1])  # param_amax by gather_float8
          7: float32[1] = getitem(f.6, 0)  # param_amax saved by gather_float8
          8: 2 values = monograph.float8_cast_known(%w, f.7, float8_e4m3fn)  # param_all_gather w by gather_float8
          9: float8_e4m3fn[16, 32] = getitem(f.8, 0)  # param_all_gather w by gather_float8
          10: float32[1, 1] = getitem(f.8, 1)  # param_all_gather w by gather_float8
          11: uint8[16, 32] = view.dtype(f.9, uint8)  # param_all_gather w by gather_float8
          12: uint8[32, 32] = all_gather_into_tensor(f.11, 2, fsdp_gather)  <<  # param_all_gather w by gather_float8
          13: uint8[32, 32] = wait_tensor(f.12)  # param_all_gather w by gather_float8
          14: float8_e4m3fn[32, 32] = view.dtype(f.13, float8_e4m3fn)  # by gather_float8
          15: bfloat16[32, 32] = monograph.float8_matmul(f.14, f.14, f.10, f.10, True)
          16: bfloat16[] = sum(f.15)
        backward:
          0: uint8[32, 32] = t(f.13)  # by gather_float8
          1: uint8[32, 32] = clone(b.0, memory_format=contiguous_format)  # by gather_float8
          2: float8_e4m3fn[32, 32] = view.dtype(b.1, float8_e4m3fn)  # by gather_float8
          3: bfloat16[32, 32] = monograph.float8_matmul(b.2, b.2, f.10, f.10, True)
          return f.16, b.3
        """,
    )


def test_weights_that_others_read_or_that_have_scales_of_rows_stay_in_bfloat16():
    hand = ByHand()
    w, v, u = (gather(hand, name, 16, 32) for name in "wvu")
    both = hand.call(ATEN.cat.default, [v, u])
    found = [square(hand, w), hand.call(ATEN.mm.default, w, hand.call(ATEN.t.default, w)), square(hand, both)]
    found.append(square(hand, u, is_rowwise=True))
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.cat.default, found[:2]))
    graph = hand.done(loss, v=found[2], u=found[3])
    before = graph.text()
    assert run("gather_float8", graph) == "0 parameters in 0 all_gathers sent in float8"
    assert graph.text() == before


def optimize(*, is_on):
    """A captured step on two ranks after all passes, and what they say."""
    graph, facts = capture_small("llama3", Mesh(dp_shard=2), **BF16)
    options = QuantizeMatmulsConfig(recipe="tensorwise")
    passes = PassesConfig(off=() if is_on else ("gather_float8",), quantize_matmuls=options)
    records = run_passes(graph, build_passes(passes, "float8"), facts)
    return graph, {record.name: record for record in records}


def test_half_the_bytes_of_a_block_are_gathered_and_kept():
    (before, _), (after, records) = (optimize(is_on=is_on) for is_on in (False, True))
    (sent,), (sent_now,) = (
        [value_of(node).nbytes for node in graph.nodes if node.target is ALL_GATHER and tag_of(node).block is not None]
        for graph in (before, after)
    )
    weights = sent - 2 * 2 * 64  # both norms stay in bfloat16
    assert sent - sent_now == weights // 2
    assert len([node for node in after.nodes if node.target is ALL_REDUCE and node.args[1] == "max"]) == 1
    record = records["gather_float8"]
    assert record.note == "7 parameters in 1 all_gather sent in float8"
    assert record.after.moved_bytes < record.before.moved_bytes
    kept = [find_memory(graph).live_bytes[list(map(is_backward, graph.nodes)).index(True)] for graph in (before, after)]
    assert kept[0] - kept[1] > 0.9 * weights / 2, "from forward to backward"


@pytest.mark.parametrize(
    ("degrees", "changes"),
    [
        ({"shard": 2}, {}),
        pytest.param(
            {"shard": 2}, {"parallelism.reshard_after_forward": True, "model.n_layers": 2}, marks=pytest.mark.long
        ),
        pytest.param({"shard": 2}, {"activation_checkpoint.mode": "full"}, marks=pytest.mark.long),
        pytest.param(
            {"shard": 2},
            {"passes.off": ("bucket_collectives", "merge_matmuls", "fuse_swiglu_epilogue")},
            marks=pytest.mark.long,
        ),
        pytest.param({"shard": 2}, {"training.dtype": "bfloat16"}, marks=pytest.mark.long),
        pytest.param({"shard": 2, "tp": 2}, {}, marks=pytest.mark.long),
    ],
)
def test_no_bit_changes(degrees, changes, tmp_path):
    config = plan("llama3", tmp_path, {**FLOAT8, **changes}, **degrees)
    off = replace_leaf(config, "passes.off", (*changes.get("passes.off", ()), "gather_float8"))
    ranks = 4 if "tp" in degrees else 2
    for found in pool.run(ranks, on_ranks, config, {"on": config, "off": off}):
        assert differences(found["on"], found["off"]) == []


def test_a_scale_of_one_shard_alone_is_refused():
    hand = ByHand()
    w = gather(hand, "w", 16, 32)
    graph = hand.done(hand.call(ATEN.sum.default, square(hand, w, path="wq"), dtype=torch.float32))
    graph.properties = find_communication_invariants(graph)
    run("gather_float8", graph)
    facts = Facts(group_sizes={"fsdp_gather": 2})
    for check in (check_collectives, check_properties):
        check(graph, graph.nodes, facts)
    (reduced,) = [node for node in graph.nodes if node.target is ALL_REDUCE]
    reduced.args = (reduced.args[0], "sum", "fsdp_gather")
    with pytest.raises(GraphError, match="largest magnitudes of shards are combined by another collective"):
        check_collectives(graph, graph.nodes, facts)
    (cast,) = [node for node in graph.nodes if node.target is FLOAT8_CAST_KNOWN]
    (amax,) = [node for node in graph.nodes if node.target is FLOAT8_AMAX]
    cast.args = (cast.args[0], amax, E4M3)
    with pytest.raises(GraphError, match="w is used after a gather from no group; it was captured from fsdp_gather"):
        check_properties(graph, graph.nodes, facts)

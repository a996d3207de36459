"""bucket_collectives: one collective per block and kind, packed in the order of the table, without a rank in sight."""

from monograph.annotate import Role
from monograph.compat.ops import ALL_GATHER, ATEN, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.query import value_of
from monograph.parallel.mesh import Mesh
from monograph.passes.comm.bucket_collectives_options import BucketCollectivesConfig
from monograph.passes.config import PassesConfig
from tests.kit.pipelines import capture_small, make_pass
from tests.passes.written import BACKWARD, ByHand, check_text, run

SLOTS = ("layers.0.a", "layers.0.b")


def two_parameters():
    hand = ByHand()
    a, b = hand.input("layers.0.a", 2), hand.input("layers.0.b", 3)

    def move(op, value, slot, *args, **where):
        started = hand.call(op, value, *args, slot=slot, path="layers.0", **where)
        return hand.call(WAIT_TENSOR, started, slot=slot, path="layers.0", **where)

    gathered = {"role": Role.PARAM_ALL_GATHER}
    whole_b = move(ALL_GATHER, b, SLOTS[1], 2, "fsdp_gather", **gathered)
    early = hand.call(ATEN.mul.Tensor, whole_b, 2, path="layers.0")
    whole_a = move(ALL_GATHER, a, SLOTS[0], 2, "fsdp_gather", **gathered)
    loss = hand.call(ATEN.add.Tensor, hand.call(ATEN.sum.default, early), hand.call(ATEN.sum.default, whole_a))
    scattered = {"role": Role.GRAD_REDUCE_SCATTER, "direction": BACKWARD}
    grads = [hand.call(ATEN.mul.Tensor, each, 3, path="layers.0", direction=BACKWARD) for each in (whole_a, whole_b)]
    shards = [
        move(REDUCE_SCATTER, grad, slot, "sum", 2, "fsdp_scatter", **scattered)
        for grad, slot in zip(grads, SLOTS, strict=True)
    ]
    return hand.done(loss, layers__0__a=shards[0], layers__0__b=shards[1])


def test_gathers_start_with_the_first_and_scatters_with_the_last_in_the_order_of_the_table():
    graph = two_parameters()
    assert run("bucket_collectives", graph, slots=SLOTS) == "4 collectives merged into 2"
    check_text(
        graph,
        """
        forward block 0:
          0: float32[1, 2] = view(%layers.*.a, [1, 2])  # layers.* param_all_gather by bucket_collectives
          1: float32[1, 3] = view(%layers.*.b, [1, 3])  # layers.* param_all_gather by bucket_collectives
          2: float32[1, 5] = cat([f.0, f.1], 1)  # layers.* param_all_gather by bucket_collectives
          3: float32[5] = view(f.2, [5])  # layers.* param_all_gather by bucket_collectives
          4: float32[10] = all_gather_into_tensor(f.3, 2, fsdp_gather)  <<  # layers.* param_all_gather by bucket_collectives
          5: float32[10] = wait_tensor(f.4)  # layers.* param_all_gather by bucket_collectives
          6: float32[2, 5] = view(f.5, [2, 5])  # layers.* param_all_gather by bucket_collectives
          7: 2 values = split_with_sizes(f.6, [2, 3], 1)  # layers.* param_all_gather by bucket_collectives
          8: float32[2, 2] = getitem(f.7, 0)  # layers.* param_all_gather by bucket_collectives
          9: float32[2, 2] = clone(f.8, memory_format=contiguous_format)  # layers.* param_all_gather by bucket_collectives
          10: float32[4] = view(f.9, [4])  # layers.* param_all_gather by bucket_collectives
          11: float32[2, 3] = getitem(f.7, 1)  # layers.* param_all_gather by bucket_collectives
          12: float32[2, 3] = clone(f.11, memory_format=contiguous_format)  # layers.* param_all_gather by bucket_collectives
          13: float32[6] = view(f.12, [6])  # layers.* param_all_gather by bucket_collectives
          14: float32[6] = mul.Tensor(f.13, 2)  # layers.*
        forward:
          0: float32[] = sum(f0.14)
          1: float32[] = sum(f0.10)
          2: float32[] = add.Tensor(f.0, f.1)
        backward block 0:
          0: float32[4] = mul.Tensor(f.10, 3)  # layers.*
          1: float32[6] = mul.Tensor(f.13, 3)  # layers.*
          2: float32[2, 2] = view(b.0, [2, 2])  # layers.* grad_reduce_scatter by bucket_collectives
          3: float32[2, 3] = view(b.1, [2, 3])  # layers.* grad_reduce_scatter by bucket_collectives
          4: float32[2, 5] = cat([b.2, b.3], 1)  # layers.* grad_reduce_scatter by bucket_collectives
          5: float32[10] = view(b.4, [10])  # layers.* grad_reduce_scatter by bucket_collectives
          6: float32[5] = reduce_scatter_tensor(b.5, sum, 2, fsdp_scatter)  <<  # layers.* grad_reduce_scatter by bucket_collectives
          7: float32[5] = wait_tensor(b.6)  # layers.* grad_reduce_scatter by bucket_collectives
          8: 2 values = split_with_sizes(b.7, [2, 3], 0)  # layers.* grad_reduce_scatter by bucket_collectives
          9: float32[2] = getitem(b.8, 0)  # layers.* grad_reduce_scatter by bucket_collectives
          10: float32[2] = view(b.9, [2])  # layers.* grad_reduce_scatter by bucket_collectives
          11: float32[3] = getitem(b.8, 1)  # layers.* grad_reduce_scatter by bucket_collectives
          12: float32[3] = view(b.11, [3])  # layers.* grad_reduce_scatter by bucket_collectives
        backward:
          return f.2, b0.10, b0.12
        """,  # noqa: E501 - the text as it is printed
    )


def test_pieces_of_one_row_are_laid_out_like_the_originals():
    """One expert, one rank that holds it: the gradient of each weight is a table of one row."""
    hand = ByHand()
    shards = []
    for slot, width in zip(SLOTS, (2, 3), strict=True):
        where = {"slot": slot, "path": "layers.0", "direction": BACKWARD, "role": Role.GRAD_REDUCE_SCATTER}
        started = hand.call(REDUCE_SCATTER, hand.input(slot, 1, width), "sum", 1, "efsdp_scatter", **where)
        shards.append(hand.call(WAIT_TENSOR, started, **where))
    read = [hand.call(ATEN.mul.Tensor, shard, 2, path="layers.0", direction=BACKWARD) for shard in shards]
    graph = hand.done(hand.call(ATEN.sum.default, read[0]), layers__0__a=read[0], layers__0__b=read[1])
    assert run("bucket_collectives", graph, slots=SLOTS) == "2 collectives merged into 1"
    assert [value_of(node.args[0]).stride() for node in read] == [(2, 1), (3, 1)]


def count_gathers(graph):
    return sum("<<" in line and "param_all_gather" in line for line in graph.text(folded=False).splitlines())


def test_a_bucket_ends_at_its_size_and_blocks_groups_and_halves_stay_apart():
    graph, facts = capture_small("deepseek_v3", Mesh(dp_shard=2, ep=2))
    single = count_gathers(graph)
    tight = PassesConfig(bucket_collectives=BucketCollectivesConfig(max_bytes=1))
    make_pass("dedupe_all_gathers").run(graph, facts)
    make_pass("bucket_collectives", tight).run(graph, facts)
    assert count_gathers(graph) == single, "nothing fits with anything else"
    make_pass("bucket_collectives").run(graph, facts)
    assert count_gathers(graph) == 7, "embedding, dense block, two groups in each of two MoE blocks, head"

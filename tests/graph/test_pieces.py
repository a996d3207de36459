"""Which ops of a program run in place: those whose first argument nothing else can read; memory is counted so."""

import json
import operator
from dataclasses import replace

import pytest
import torch

from monograph.compat.ops import ALL_REDUCE, ATEN, WAIT_TENSOR
from monograph.execute.program import lower
from monograph.graph.file import graph_from_data, graph_to_data
from monograph.graph.host_copy import TO_HOST
from monograph.graph.memory import find_memory
from monograph.graph.pieces import find_in_place
from monograph.graph.signature import InputKind
from monograph.graph.tags import set_tag, tag_of
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS, add_embedding_rows_
from tests.kit.by_hand import ByHand

TABLE, ROWS = (8, 4), (2, 4)
TABLE_BYTES, ROWS_BYTES, ID_BYTES = 4 * 8 * 4, 4 * 2 * 4, 8 * 2


def run_compiled(value):
    """Stands for code that was compiled: nothing says that it returns a view of what it was given."""
    return (value.view(4, 8),)


def write(case="", times=1):
    """Rows added to a matrix that something else may read as well."""
    hand = ByHand()
    x = hand.input("x", *TABLE)
    grad = hand.input("grad", *ROWS, kind=InputKind.BATCH)
    ids = hand.input("ids", 2, kind=InputKind.BATCH, dtype=torch.int64)
    base = x if case == "an input" else hand.call(ATEN.neg.default, x)
    results = {}
    if case == "a cached cast":
        base = hand.call(ATEN._to_copy.default, x, dtype=torch.float64)
        set_tag(base, replace(tag_of(base), once=True))
    if case == "made by compiled code":
        base = hand.call(ATEN.view.default, hand.call(operator.getitem, hand.call(run_compiled, x), 0), list(TABLE))
    if case == "read by compiled code":
        view = hand.call(operator.getitem, hand.call(run_compiled, base), 0)
    if case == "rows of its own":
        grad = hand.call(ATEN.slice.Tensor, base, 0, 0, 2)
    if case == "one of two parts":
        pair = hand.call(ATEN.split_with_sizes.default, hand.call(ATEN.cat.default, [base, base]), [8, 8])
        base, other = (hand.call(operator.getitem, pair, index) for index in range(2))
    if case == "read before":
        results["before"] = hand.call(ATEN.abs.default, base)
    if case == "sent meanwhile":
        launch = hand.call(ALL_REDUCE, base, "sum", "g")
    if case == "copied meanwhile":
        results["host"] = hand.call(TO_HOST, base)
    if case == "spread":
        base = hand.call(ATEN.expand.default, hand.call(ATEN.ones.default, [1, 4]), [8, 4])
    total = base
    for _ in range(times):
        total = hand.call(ADD_EMBEDDING_ROWS, total, grad, ids)
    if case == "read after":
        results["after"] = hand.call(ATEN.abs.default, hand.call(ATEN.view.default, base, [4, 8]))
    if case == "read by compiled code":
        results["after"] = hand.call(ATEN.abs.default, view)
    if case == "returned":
        results["base"] = base
    if case == "sent meanwhile":
        results["sent"] = hand.call(WAIT_TENSOR, launch)
    if case == "one of two parts":
        results["other"] = hand.call(ATEN.abs.default, other)
    return hand.done(hand.call(ATEN.sum.default, total), x=total, **results)


def run_program(graph):
    """The ops that add rows, as a program runs them; what it computes must be what the graph computes."""
    values = torch.randn(TABLE), torch.randn(ROWS), torch.tensor([5, 5])
    kept, found = [value.clone() for value in values], {}
    module = lower(graph, lambda spec, value: found.setdefault(spec.name, value))
    module(*values)
    assert all(map(torch.equal, values, kept)), "inputs are not written over"
    for spec, wanted in zip(graph.outputs, graph.module(*values), strict=True):
        assert torch.equal(found[spec.name], wanted), spec.name
    return [node.target for node in module.graph.nodes if node.target in (ADD_EMBEDDING_ROWS, add_embedding_rows_)]


@pytest.mark.parametrize("case", ["", "read before"])
def test_an_argument_that_nothing_reads_any_more_is_written_over(case):
    graph = write(case)
    assert run_program(graph) == [add_embedding_rows_]
    assert run_program(graph_from_data(json.loads(json.dumps(graph_to_data(graph))), {})) == [add_embedding_rows_]


@pytest.mark.parametrize(
    "case",
    [
        *("an input", "a cached cast", "read after", "returned", "copied meanwhile", "one of two parts", "spread"),
        *("made by compiled code", "read by compiled code", "rows of its own"),
    ],
)
def test_what_something_else_may_read_is_copied(case):
    assert run_program(write(case)) == [ADD_EMBEDDING_ROWS]


def test_what_is_being_sent_is_copied():
    assert not find_in_place(write("sent meanwhile").module.graph)


def test_memory_that_is_taken_over_counts_once():
    inputs = TABLE_BYTES + ROWS_BYTES + ID_BYTES
    peaks = [find_memory(write(case, times=2)).peak_bytes - inputs for case in ("", "an input", "read after")]
    loss = 4
    assert peaks == [TABLE_BYTES + loss, TABLE_BYTES + loss, 3 * TABLE_BYTES]

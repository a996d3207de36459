"""The list of operators that graph files may call: what captures and passes produce, and nothing that has effects."""

import json

import pytest
import torch

from monograph.compat.ops import find_op
from monograph.errors import ConfigError
from monograph.graph import allowed_ops
from monograph.graph.allowed_ops import EXTRA, FUNCTIONS, GENERATED, allow_op, find_strings, find_target, is_allowed
from monograph.graph.encode import GraphFileError
from monograph.graph.file import graph_from_data, graph_to_data, parse_graph_file
from monograph.graph.verify_read import check_read_graph
from tests.graph.captured_ops import CASES, FEW, capture_case, find_all_ops, find_graphs, find_ops

LISTED = sorted((GENERATED | EXTRA.keys()) - FUNCTIONS.keys())
ATTENTION = "aten._scaled_dot_product_"
"""Operators that draw random numbers for dropout, which is refused by its probability."""


def check_case(name):
    """Every graph of a case is written, read back and accepted; how many there were."""
    count = 0
    for pipeline, graph, facts in find_graphs(name):
        assert find_ops(graph) <= GENERATED, (name, pipeline, sorted(find_ops(graph) - GENERATED))
        read = graph_from_data(parse_graph_file(json.dumps(graph_to_data(graph)).encode()), {})
        check_read_graph(read, facts, is_forward=pipeline == "evaluation")
        count += 1
    return count


@pytest.mark.parametrize("name", FEW)
def test_every_graph_that_is_captured_can_be_read_back(name):
    assert check_case(name) > 1


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(CASES) - set(FEW)))
def test_every_graph_of_all_families_and_meshes_can_be_read_back(name):
    try:
        assert check_case(name) > 1
    finally:
        capture_case.cache_clear()


@pytest.mark.long
def test_the_list_has_what_captures_produce_and_nothing_more():
    assert set(find_all_ops()) == GENERATED


@pytest.mark.parametrize("name", LISTED)
def test_a_listed_operator_changes_no_argument_and_draws_no_random_numbers(name):
    op = find_op(name)
    assert op is not None and find_target(name) is op
    assert not op._schema.is_mutable
    assert torch.Tag.nondeterministic_seeded not in op.tags or name.startswith(ATTENTION)


def test_no_listed_operator_takes_a_text_but_groups_reductions_and_devices():
    takes = [(name, each.name) for name in LISTED for each in find_op(name)._schema.arguments]
    allowed = {(argument, value) for name, argument in takes for value in find_strings(name, argument, ["dp"], "cpu")}
    gelu = {("approximate", "none"), ("approximate", "tanh")}
    assert allowed == {("group_name", "dp"), ("reduce_op", "sum"), ("reduce_op", "max"), ("device", "cpu")} | gelu


@pytest.mark.parametrize("name", ["aten.from_file.default", "aten.fill_.Scalar", "aten.copy_.default", "aten.mm.out"])
def test_file_and_in_place_operators_are_not_listed(name):
    assert find_op(name) is not None, "torch has it"
    with pytest.raises(GraphFileError, match="not in the list of allowed operators"):
        find_target(name)


@pytest.fixture
def no_added_ops(monkeypatch):
    monkeypatch.setattr(allowed_ops, "_added", {})


@pytest.mark.usefixtures("no_added_ops")
def test_a_model_can_allow_one_more_operator_with_the_texts_it_takes():
    name = "aten.scatter_reduce.two"
    assert not is_allowed(name)
    allow_op(name, reason="a model that pools", strings={"reduce": ("sum", "amax")})
    assert is_allowed(name)
    assert find_strings(name, "reduce", [], "cpu") == ("sum", "amax")
    assert not find_strings(name, "other", [], "cpu")


@pytest.mark.usefixtures("no_added_ops")
@pytest.mark.parametrize("name", ["aten.add_.Tensor", "aten.mm.out", "aten.rand_like.default", "aten.nothing.default"])
def test_an_operator_with_effects_cannot_be_allowed(name):
    with pytest.raises(ConfigError, match="allow_op"):
        allow_op(name, reason="wanted")
    with pytest.raises(ConfigError, match="allow_op"):
        allow_op("aten.gelu.default", reason="")
    assert not is_allowed(name)

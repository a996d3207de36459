"""A graph that was written and read is the same graph, and reading one runs nothing but what it may."""

import json

import pytest
import torch

from monograph.execute.program import lower
from monograph.graph.encode import GraphFileError
from monograph.graph.file import graph_from_data, graph_to_data
from monograph.graph.query import has_symbols, value_of
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import SymIntMeta, TensorMeta
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from tests.execute.updates import CPU, small
from tests.graph.captures import capture_chunk_nodes
from tests.kit.capture import prepare


def there_and_back(graph):
    return graph_from_data(json.loads(json.dumps(graph_to_data(graph))), {})


def twins_as_data():
    graph, _ = capture_chunk_nodes()
    return graph_to_data(graph)


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory):
    """The most that graphs hold: sizes from data, lists of values, buckets."""
    changes = {"compile.mode": "graph", "model.n_layers": 1}
    config = small("qwen3_moe", tmp_path_factory.mktemp("run"), changes, shard=2, tp=2, ep=2)
    tokens = torch.zeros(1, config.training.seq_len, dtype=torch.int64)
    batch = dict.fromkeys(("tokens", "labels", "positions", "documents"), tokens)
    with fake_groups(Mesh(dp_shard=2, tp=2, ep=2), 0, CPU) as groups:
        return prepare(config, groups, batch).capture_and_pass().graph


def test_a_graph_that_was_read_prints_as_the_one_that_was_written(with_experts):
    read = there_and_back(with_experts)
    assert read.text() == with_experts.text()
    assert read.digest() == with_experts.digest()
    assert read.inputs == with_experts.inputs
    assert read.outputs == with_experts.outputs
    assert [tag_of(node) for node in read.nodes] == [tag_of(node) for node in with_experts.nodes]
    assert [node.args == () for node in read.nodes] == [node.args == () for node in with_experts.nodes]
    assert graph_to_data(read) == graph_to_data(with_experts)


def test_values_come_back_as_words_and_not_as_tensors(with_experts):
    read = there_and_back(with_experts)
    values = [value_of(node) for node in read.nodes]
    assert not any(isinstance(value, torch.Tensor | torch.SymInt) for value in values)
    assert any(isinstance(value, SymIntMeta) for value in values)
    assert any(isinstance(value, TensorMeta) and has_symbols(value) for value in values)
    symbols = [has_symbols(value_of(node)) for node in with_experts.nodes]
    assert [has_symbols(value) for value in values] == symbols


def test_a_graph_that_was_read_can_be_run(with_experts):
    written, read = (lower(graph, lambda spec, value: None) for graph in (with_experts, there_and_back(with_experts)))
    assert [node.target for node in read.graph.nodes if node.op != "placeholder"] == [
        node.target for node in written.graph.nodes if node.op != "placeholder"
    ]


PAYLOADS = {
    "another function": {"target": "system"},
    "a function of another module": {"target": "os.system.default"},
    "an op of another library": {"target": "inductor.resize_storage_bytes_.default"},
    "a part that is no op": {"target": "aten.mm.__class__"},
    "a module that is not there": {"op": "call_module", "target": "compiled_0"},
    "an attribute": {"op": "get_attr", "target": "x"},
    "a method": {"op": "call_method", "target": "backward"},
    "code as the name of an argument": {"kwargs": {"a=print('ran')) #": 1}},
    "a class": {"args": [{"class": "os:system"}]},
    "a value from the future": {"args": [{"v": 10_000}]},
    "a value that is no number": {"args": [{"v": True}]},
    "two keys": {"args": [{"v": 0, "t": []}]},
    "a dtype that is a function": {"args": [{"d": "load"}]},
    "another device": {"args": [{"device": "mtia"}]},
}


@pytest.mark.parametrize("change", PAYLOADS.values(), ids=PAYLOADS)
def test_what_a_graph_may_not_hold_is_refused(change):
    data = twins_as_data()
    index = next(index for index, node in enumerate(data["nodes"]) if node.get("target") == "aten.mm.default")
    data["nodes"][index].update(change)
    with pytest.raises(GraphFileError):
        graph_from_data(data, {})


@pytest.mark.parametrize("data", [None, [], {}, {"nodes": []}, "text", {"inputs": 3}], ids=str)
def test_what_is_not_a_graph_is_refused_as_such(data):
    with pytest.raises(GraphFileError):
        graph_from_data(data, {})


def test_a_graph_without_one_of_its_inputs_is_refused():
    data = twins_as_data()
    del data["inputs"][0]
    with pytest.raises(GraphFileError, match="other inputs"):
        graph_from_data(data, {})

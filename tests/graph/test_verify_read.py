"""A graph from a file runs only when it is one that this run may use: everything a file can have wrong is refused."""

import json

import pytest

from monograph.graph.encode import GraphFileError
from monograph.graph.file import graph_from_data, graph_to_data, parse_graph_file
from monograph.graph.refuse import GraphError
from monograph.graph.verify_read import MemoryLimits, check_read_graph, check_schema
from monograph.kernels.random import DROPOUT
from monograph.passes.config import PassesConfig
from tests.graph.captured_ops import find_graphs
from tests.graph.captures import capture_chunk_nodes

LIMITS = MemoryLimits(1 << 30, 1 << 30)
REFUSED = (GraphFileError, GraphError)


def read(data, facts, **more):
    """What loading does with a graph, without a folder."""
    graph = graph_from_data(parse_graph_file(json.dumps(data).encode()), {})
    check_read_graph(graph, facts, **{"is_forward": False, "limits": LIMITS, **more})
    return graph


@pytest.fixture(scope="module")
def chunk_nodes():
    graph, facts = capture_chunk_nodes()
    return json.dumps(graph_to_data(graph)), facts


@pytest.fixture
def data(chunk_nodes):
    return json.loads(chunk_nodes[0])


@pytest.fixture
def facts(chunk_nodes):
    return chunk_nodes[1]


@pytest.fixture(scope="module")
def experts():
    """A step with sizes that data decide."""
    graph, facts = next((graph, facts) for name, graph, facts in find_graphs("qwen3_moe ep2") if name == "default")
    return json.dumps(graph_to_data(graph)), facts


def find_place(data, target):
    return next(place for place, node in enumerate(data["nodes"]) if node.get("target") == target)


def add_node(data, target, args=(), value=None, **kwargs):
    """Put one more node before the output; the place it has."""
    place = len(data["nodes"]) - 1
    data["values"].append(value)
    entry = {"op": "call_function", "target": target, "args": list(args), "value": len(data["values"]) - 1, "tag": 0}
    data["nodes"].insert(place, {**entry, **({"kwargs": kwargs} if kwargs else {})})
    return place


def test_a_captured_step_is_accepted_as_it_was_written(data, facts):
    assert len(read(data, facts).nodes) == len(data["nodes"])


def test_no_file_is_written_by_a_graph_that_names_one(data, facts, tmp_path):
    form = ["uint8", [4], [1], "cpu"]
    file = add_node(data, "aten.from_file.default", [str(tmp_path / "mark"), True, 4], form, dtype={"d": "uint8"})
    add_node(data, "aten.fill_.Scalar", [{"v": file}, 65], form)
    with pytest.raises(REFUSED, match="not in the list of allowed operators"):
        read(data, facts)
    assert list(tmp_path.iterdir()) == []


FORBIDDEN = {
    "in-place op": ("aten.add_.Tensor", "not in the list"),
    "op that writes to out": ("aten.mm.out", "not in the list"),
    "random op": ("aten.rand_like.default", "not in the list"),
    "op of another library": ("prims.convert_element_type.default", "not in the list"),
    "op that loads a library": ("profiler._record_function_enter_new.default", "not in the list"),
    "collective of another kind": ("_c10d_functional.broadcast.default", "not in the list"),
    "higher-order op": ("higher_order.cond", "not in the list"),
    "Python function": ("mod", "not in the list"),
    "no name at all": (None, "not in the list"),
}


@pytest.mark.parametrize(("target", "why"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_an_operator_that_no_capture_produces_is_refused(data, facts, target, why):
    data["nodes"][find_place(data, "aten.mm.default")]["target"] = target
    with pytest.raises(REFUSED, match=why):
        read(data, facts)


def change_group(data, place):
    data["nodes"][place]["args"][-1] = "another"


def change_reduction(data, place):
    data["nodes"][find_place(data, "_c10d_functional.reduce_scatter_tensor.default")]["args"][1] = "premul_sum"


def change_count(data, place):
    data["nodes"][place]["args"][1] = 3


def add_text(data, place):
    add_node(data, "aten.alias.default", ["/etc/passwd"], ["float32", [4], [1], "cpu"])


def add_device(data, place):
    add_node(data, "aten.zeros.default", [[4]], ["float32", [4], [1], "cpu"], device={"device": "cuda"})


def add_pinned(data, place):
    add_node(data, "aten.zeros.default", [[4]], ["float32", [4], [1], "cpu"], pin_memory=True)


def add_sparse(data, place):
    add_node(data, "aten.zeros.default", [[4]], ["float32", [4], [1], "cpu"], layout={"layout": "sparse_coo"})


def add_dropout(data, place):
    form = ["float32", [1, 1, 4, 4], [16, 16, 4, 1], "cpu"]
    ones = add_node(data, "aten.ones.default", [[1, 1, 4, 4]], form)
    add_node(data, "aten._scaled_dot_product_flash_attention_for_cpu.default", [{"v": ones}] * 3 + [0.5], None)


def add_large(data, place):
    add_node(data, "aten.zeros.default", [[10**12]], ["float32", [10**12], [1], "cpu"])


def add_many_large(data, place):
    last = place
    for _ in range(40):
        last = add_node(data, "aten.zeros.default", [[1 << 26]], ["float32", [1 << 26], [1], "cpu"])
    for each in range(last - 39, last + 1):
        add_node(data, "aten.neg.default", [{"v": each}], ["float32", [1 << 26], [1], "cpu"])


def add_lie(data, place):
    add_node(data, "aten.zeros.default", [[10**12]], ["float32", [4], [1], "cpu"])


def add_endless_list(data, place):
    wide = add_node(data, "aten.zeros.default", [[1]], ["float32", [1], [1], "cpu"])
    wide = add_node(data, "aten.expand.default", [{"v": wide}, [1 << 40]], ["float32", [1 << 40], [0], "cpu"])
    add_node(data, "aten.unbind.int", [{"v": wide}], {"list": []})


def add_large_number(data, place):
    add_node(data, "aten.zeros.default", [[10**30]], ["float32", [4], [1], "cpu"])


def add_symbol(data, place):
    add_node(data, "aten.zeros.default", [[4]], ["float32", ["u0"], [1], "cpu"])


def add_code_as_size(data, place):
    add_node(data, "aten.zeros.default", [[4]], ["float32", ["__import__('os')"], [1], "cpu"])


def add_python_sum(data, place):
    add_node(data, "add", [[1] * 10, [2] * 10], None)


def add_item_of_tensor(data, place):
    add_node(data, "getitem", [{"v": 0}, 0], ["float32", [4], [1], "cpu"])


def add_once(data, place):
    data["tags"].append({**data["tags"][data["nodes"][find_place(data, "aten.mm.default")]["tag"]], "once": True})
    data["nodes"][find_place(data, "aten.mm.default")]["tag"] = len(data["tags"]) - 1


def add_odd_tag(data, place):
    data["tags"][0]["path"] = ["a"]


def read_without_waiting(data, place):
    wait = next(index for index, node in enumerate(data["nodes"]) if node.get("args", [None])[0] == {"v": place})
    reader = next(node for node in data["nodes"][wait + 1 :] if {"v": wait} in node.get("args", []))
    reader["args"] = [{"v": place} if value == {"v": wait} else value for value in reader["args"]]


def drop_tag(data, place):
    del data["nodes"][find_place(data, "aten.mm.default")]["tag"]


def move_to_backward(data, place):
    data["tags"].append({**data["tags"][data["nodes"][place]["tag"]], "direction": "backward"})
    data["nodes"][place]["tag"] = len(data["tags"]) - 1


def drop_gradient(data, place):
    del data["outputs"][-1]
    data["nodes"][-1]["args"][0].pop()


def double_gradient(data, place):
    data["outputs"][-1][1] = data["outputs"][-2][1]


def rename_input(data, place):
    data["inputs"][1][1] = data["inputs"][0][1]


def move_input(data, place):
    data["inputs"][0][5] = "cuda"


def return_input(data, place):
    data["nodes"][-1]["args"][0][-1] = {"v": 1}


def return_value(data, place):
    data["nodes"][-1]["args"] = [{"v": 1}]


def add_second_output(data, place):
    data["nodes"].append(data["nodes"][-1])


def nest_argument(data, place):
    nested = 1
    for _ in range(40):
        nested = [nested]
    data["nodes"][place]["args"][0] = nested


def refer_to_nothing(data, place):
    data["nodes"][place]["value"] = -1


def add_key(data, place):
    data["nodes"][place]["name"] = "x"


WRONG = {
    change_group: "there is no group|may be",
    change_reduction: "may be sum, max",
    change_count: "ranks|yields",
    add_text: "no text is allowed",
    add_device: "names the device",
    add_pinned: "pinned memory",
    add_sparse: "is none of",
    add_dropout: "not in the list of allowed operators",
    add_large: "of memory",
    add_many_large: "bytes of memory at its peak",
    add_lie: "the file says",
    add_endless_list: "falls into",
    add_large_number: "64 bits",
    add_symbol: "nothing before it has read",
    add_code_as_size: "a size is",
    add_python_sum: "a function has other arguments",
    add_item_of_tensor: "a function has other arguments",
    add_once: "more than to cast",
    add_odd_tag: "a node's tag has path",
    read_without_waiting: "is read without waiting",
    drop_tag: "a node has no tag",
    move_to_backward: "a forward node reads",
    drop_gradient: "do not name the same parameters",
    double_gradient: "named twice",
    rename_input: "named twice",
    move_input: "this run is on cpu",
    return_input: "the gradient of",
    return_value: "not a list of values",
    add_second_output: "not the only output",
    nest_argument: "lists within lists",
    refer_to_nothing: "refers to entry",
    add_key: "a node is",
}


@pytest.mark.parametrize(("change", "why"), WRONG.items(), ids=[change.__name__ for change in WRONG])
def test_what_a_file_has_wrong_is_refused_in_words(data, facts, change, why):
    change(data, find_place(data, "_c10d_functional.all_gather_into_tensor.default"))
    with pytest.raises(REFUSED, match=why):
        read(data, facts)


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100_000, "{", "\\xff"],
    ids=["twice", "nan", "deep", "half", "bytes"],
)
def test_a_file_that_json_reads_differently_is_refused(text):
    with pytest.raises(GraphFileError):
        parse_graph_file(text.encode())


def test_a_step_with_experts_is_accepted_and_its_sizes_are_bounded(experts):
    graph = read(json.loads(experts[0]), experts[1])
    rows = 4 * 64
    assert graph.max_size == LIMITS.device // rows, "a row of the widest value with rows that data decide"


def test_a_step_that_draws_dropout_is_accepted_as_it_was_written():
    pipelines = {"default": PassesConfig()}
    name, graph, facts = next(find_graphs("documents and dropout", pipelines))
    assert DROPOUT in {node.target for node in graph.nodes}, name
    read(graph_to_data(graph), facts)


def test_sizes_that_do_not_add_up_are_refused(experts):
    data = json.loads(experts[0])
    place = find_place(data, "aten.split_with_sizes.default")
    sizes = data["nodes"][place]["args"][1]
    data["nodes"][place]["args"][1] = [sizes[0], sizes[0], *sizes[2:]]
    with pytest.raises(REFUSED):
        read(data, experts[1])


def test_inputs_that_this_run_does_not_have_are_refused(data, facts):
    graph = read(data, facts)
    check_schema(graph, graph.inputs)
    with pytest.raises(GraphFileError, match="which this run does not have"):
        check_schema(graph, graph.inputs[1:])


def test_an_evaluation_is_not_taken_for_a_step(data, facts):
    with pytest.raises(GraphFileError, match="a backward"):
        read(data, facts, is_forward=True)

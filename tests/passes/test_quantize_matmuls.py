"""quantize_matmuls: which matmuls read float8, which casts they share, and why the others stay as they are."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.errors import ConfigError
from monograph.graph.cast_weights import is_cached_cast
from monograph.graph.cost import measure
from monograph.graph.tags import tag_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH, FLOAT8_MATMUL
from monograph.machine.table import MACHINES
from monograph.parallel.mesh import Mesh
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.passes.config import PassesConfig
from monograph.run import train
from monograph.train.float8_limits import check_quantized
from tests.execute.updates import small
from tests.kit.pipelines import capture_small, make_pass

BF16 = {"training.compute_dtype": "bfloat16", "model.dim": 64}


def quantize(graph, facts, **options):
    config = PassesConfig(on=("quantize_matmuls",), quantize_matmuls=QuantizeMatmulsConfig(**options))
    return make_pass("quantize_matmuls", config).run(graph, facts)


def test_operands_are_cast_once_for_all_readers_and_gradients_in_both_layouts():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    assert quantize(graph, facts) == "rowwise: 42 of 42 matmuls (14 forward, 14 weight gradient, 14 input gradient)"
    counts = Counter(node.target for node in graph.nodes)
    assert counts[FLOAT8_MATMUL] == 42
    # A block: g of seven linears in both layouts; x of four, w of seven by rows; x of four, w of seven transposed.
    assert counts[FLOAT8_CAST_BOTH] == 2 * 7
    assert counts[FLOAT8_CAST] == 2 * (4 + 7 + 4 + 7)
    casts = [node for node in graph.nodes if node.target is FLOAT8_CAST]
    shared = [node for node in casts if tag_of(node).path == "layers.0.attention.wq"]
    assert max(len(part.users) for node in shared for part in node.users) == 3, "x for q, k and v"


def test_weights_are_cast_from_the_copies_that_the_optimizer_writes_else_from_fp32():
    for is_written in (True, False):
        graph, facts = capture_small("llama3", Mesh(), **BF16)
        make_pass("elide_trivial_collectives", PassesConfig()).run(graph, facts)
        quantize(graph, replace(facts, is_single_pass=is_written, reshard=not is_written))
        make_pass("cache_cast_weights", PassesConfig(on=("cache_cast_weights",))).run(graph, facts)
        casts = [node for node in graph.nodes if node.target in (FLOAT8_CAST, FLOAT8_CAST_BOTH)]
        assert not [node for node in casts if is_cached_cast(node)], "they run in every step"
        sources = [node.args[0] for node in casts]
        assert len([each for each in sources if is_cached_cast(each)]) == (28 if is_written else 0)
        assert len([each for each in sources if each.op == "placeholder"]) == (0 if is_written else 28)
        copies = [node for node in graph.nodes if node.target is ATEN._to_copy.default and node.args[0] in sources]
        assert not copies, "nothing reads the bfloat16 copy"


def test_high_precision_weight_gradients_stay_in_bfloat16():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    note = quantize(graph, facts, recipe="rowwise_hp_dw")
    assert note.startswith("rowwise_hp_dw: 28 of 42 matmuls (14 forward, 14 input gradient)")
    assert not [node for node in graph.nodes if node.target is FLOAT8_CAST_BOTH]


def test_tensorwise_gradients_are_e5m2_and_have_one_scale():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    quantize(graph, facts, recipe="tensorwise")
    casts = {node: node.args[1] for node in graph.nodes if node.target in (FLOAT8_CAST, FLOAT8_CAST_BOTH)}
    assert {dtype for node, dtype in casts.items() if node.target is FLOAT8_CAST_BOTH} == {torch.float8_e5m2}
    assert {tuple(node.meta["val"][1].shape) for node in casts} == {(1, 1)}


def test_paths_choose_and_graph_lines_say_why_a_matmul_stayed():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    note = quantize(graph, facts, only=("layers.*.feed_forward*",), skip=("*.w2",))
    assert "12 of 42" in note and "12: not in only" not in note
    assert "(not in only)" in graph.text() and "(in skip)" in graph.text()


def test_small_matmuls_stay_in_bfloat16_on_a_machine_where_casts_take_longer():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    assert "42: slower with its casts" in quantize(graph, replace(facts, machine=MACHINES["H200"]))
    assert "us, float8 saves" in graph.text()


def test_float8_matmuls_count_their_operations():
    graph, facts = capture_small("deepseek_v3", Mesh(), **BF16)
    before = measure(graph, facts).flops
    assert quantize(graph, facts).startswith("rowwise: ")
    assert measure(graph, facts).flops == before


def test_a_step_in_fp32_has_nothing_to_quantize():
    graph, facts = capture_small("llama3", Mesh())
    assert quantize(graph, facts) == "rowwise: 0 of 0 matmuls (none)"


@pytest.mark.parametrize("asked", [{"compile.numerics": "float8"}, {"passes.on": ("quantize_matmuls",)}])
def test_a_run_that_computes_in_fp32_is_refused(asked, tmp_path):
    with pytest.raises(ConfigError, match=r"float8|quantize_matmuls") as caught:
        small("llama3", tmp_path, {"compile.mode": "graph", "training.compute_dtype": "float32", **asked})
    assert "training.compute_dtype is float32" in str(caught.value)


@pytest.mark.parametrize(("machine", "is_served"), [("a100", False), ("h100", True), ("l40s", True), ("cpu", True)])
def test_a_step_for_a_machine_without_float8_is_refused(machine, is_served, tmp_path):
    """The A100 has none; a CPU multiplies in fp32, to show the numbers of other machines."""
    assert MACHINES["A100"].has_float8 is False and MACHINES["H200"].has_float8
    asked = {"compile.mode": "graph", "training.compute_dtype": "bfloat16", "compile.numerics": "float8"}
    if is_served:
        assert small("llama3", tmp_path, asked | {"machine": machine}).machine == machine
        return
    with pytest.raises(ConfigError, match="machine is a100") as caught:
        small("llama3", tmp_path, asked | {"machine": machine})
    assert "A100 has no matmuls in float8" in caught.value.why and "--compile.numerics fast" in caught.value.do


def test_a_run_in_which_no_matmul_is_quantized_is_refused_or_told(tmp_path, monkeypatch):
    narrow = {"compile.mode": "graph", "training.compute_dtype": "bfloat16", "compile.numerics": "float8"}
    config = small("llama3", tmp_path, narrow | {"passes.quantize_matmuls.only": ("layers.*.nothing",)})
    with pytest.raises(ConfigError, match="no matmul of the step can be computed in float8"):
        train(config)
    record = SimpleNamespace(name="quantize_matmuls", status="ran", added=0, note="2: slower with its casts")
    told = mock.Mock()
    monkeypatch.setattr("monograph.train.float8_limits.log", told)
    check_quantized(config, [record])
    assert told.warning.called, "what costs decide is no mistake"

"""fuse_float8_casts: ops write float8 where only casts read them, and no bit changes."""

from collections import Counter

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before
from monograph.graph.tags import tag_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH
from monograph.kernels.float8_amax import FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED
from monograph.kernels.float8_grouped import FLOAT8_GATHER_ROWS
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM, FLOAT8_NORM
from monograph.kernels.float8_swiglu import FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD
from monograph.kernels.norm import NORM
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE
from monograph.parallel.mesh import Mesh
from monograph.passes.compute import fuse_float8_casts
from monograph.passes.compute.float8_columns import is_large, plan_columns
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.eager_float8 import plan
from tests.execute.updates import differences, make_updates, one_rank
from tests.kit.by_hand import ByHand
from tests.kit.pipelines import capture_small

FUSED = {"model.kernels": "fused", "training.compute_dtype": "bfloat16", "model.dim": 64, "model.n_layers": 2}
FLOAT8 = {"compile.mode": "graph", "compile.numerics": "float8", "parallelism.fsdp": "graph", "model.kernels": "fused"}
BLOCKS = 2


def is_any(_value):
    return True


@pytest.fixture
def every_column(monkeypatch):
    """Small matrices are treated as large ones are."""
    monkeypatch.setattr(fuse_float8_casts, "plan_columns", lambda graph: plan_columns(graph, is_any))


def count_ops(passes, model="llama3", **changes):
    """How often each op is in the step after all passes."""
    graph, facts = capture_small(model, Mesh(), **{**FUSED, **changes})
    run_passes(graph, build_passes(passes, "float8"), facts, is_measured=False)
    return Counter(node.target for node in graph.nodes)


def test_gates_and_their_gradients_are_written_in_float8():
    before, after = count_ops(PassesConfig(off=("fuse_float8_casts",))), count_ops(PassesConfig())
    assert (before[SWIGLU], before[SWIGLU_BACKWARD_PACKED_RECOMPUTE]) == (BLOCKS, BLOCKS)
    assert (after[SWIGLU], after[SWIGLU_BACKWARD_PACKED_RECOMPUTE]) == (0, 0)
    assert (after[FLOAT8_SWIGLU], after[FLOAT8_SWIGLU_BACKWARD]) == (BLOCKS, BLOCKS)
    assert before[FLOAT8_CAST_BOTH] - after[FLOAT8_CAST_BOTH] == BLOCKS
    assert (after[FLOAT8_NORM], after[FLOAT8_ADD_NORM], after[NORM]) == (1, 2 * BLOCKS - 1, 0)
    # A block: both norms are recomputed and cast transposed; four weights, two of them merged, and the result of
    # attention are small, so that each is searched for its own casts by rows and transposed.
    assert (after[FLOAT8_CAST_AMAX], after[FLOAT8_CAST_TRANSPOSED]) == (0, 2 * BLOCKS)
    assert after[FLOAT8_CAST] == 10 * BLOCKS


def test_a_cast_of_large_rows_looks_at_columns_too(every_column):
    ops = count_ops(PassesConfig())
    assert (ops[FLOAT8_CAST_AMAX], ops[FLOAT8_CAST_TRANSPOSED]) == (5 * BLOCKS, 7 * BLOCKS)
    assert ops[FLOAT8_CAST] == 0, "nothing is searched for largest magnitudes but gradients"


def test_tokens_are_cast_once_for_all_experts_that_read_them():
    grouped = {"model.moe.experts.backend": "grouped_mm", "model.n_layers": 2}
    ops = count_ops(PassesConfig(), "deepseek_v3", **grouped)
    assert ops[FLOAT8_GATHER_ROWS] == 1, "one block has experts; backward gathers bfloat16 for weight gradients"


def test_rows_that_the_data_counts_are_not_large():
    """As with expert parallelism: their number is not known when a graph is made."""
    hand = ByHand()
    rows = hand.input("rows", 2, 16)
    for dtype in (torch.bfloat16, torch.float32):
        with hand.mode:
            rows.meta["val"] = torch.empty(hand.mode.shape_env.create_unbacked_symint(), 16, dtype=dtype)
        assert not is_large(rows)


def test_a_value_that_is_written_over_is_searched_again():
    graph, facts = capture_small("llama3", Mesh(), **FUSED)
    passes = build_passes(PassesConfig(off=("fuse_float8_casts",)), "float8")
    run_passes(graph, passes, facts, is_measured=False)
    one, *others = plan_columns(graph.module.graph, is_any)
    call_before(graph.module.graph, one.cast, ATEN.add_.Tensor, (one.first.args[0], 1.0), tag_of(one.cast))
    assert plan_columns(graph.module.graph, is_any) == others


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [("tensorwise", {}), ("rowwise", {"activation_checkpoint.mode": "none"})],
    ids=["one scale a tensor", "backward reads the gate in bfloat16"],
)
def test_what_is_cast_otherwise_or_read_in_bfloat16_stays(recipe, changes):
    ops = count_ops(PassesConfig(quantize_matmuls=QuantizeMatmulsConfig(recipe=recipe)), **changes)
    assert not ops[FLOAT8_SWIGLU] and not ops[FLOAT8_SWIGLU_BACKWARD]
    assert ops[SWIGLU] == BLOCKS


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_no_bit_changes(model, tmp_path, every_column):
    updates = []
    for off in ((), ("fuse_float8_casts",)):
        layers = 1 if model == "llama3" else 2
        config = plan(model, tmp_path, {**FLOAT8, "model.n_layers": layers, "passes.off": off})
        with one_rank(config) as groups:
            updates.append(make_updates(config, groups, routings=((), (2, 3))))
    assert differences(*updates) == []

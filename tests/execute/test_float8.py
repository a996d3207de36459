"""compile.numerics float8: the bits of an eager step that quantizes its linears the same way, wherever it runs."""

import pytest

from tests.execute.eager_float8 import compare_with_eager, plan
from tests.kit.ranks import pool

FULL = {"activation_checkpoint.mode": "full"}
OVERLAP = {
    "training.local_batch_size": 4,
    "compile.expert_overlap.strategy": "trace",
    "compile.expert_overlap.modules": "layers.*.moe",
}
CUT = {**OVERLAP, "compile.expert_overlap.strategy": "graph"}
CASES = {
    "llama3-rowwise": ("llama3", "rowwise", {}, {}),
    "llama3-tensorwise": ("llama3", "tensorwise", {}, {}),
    "llama3-rowwise_hp_dw": ("llama3", "rowwise_hp_dw", {}, {}),
    "llama3-recompute": ("llama3", "tensorwise", {}, FULL),
    "deepseek_v3-rowwise": ("deepseek_v3", "rowwise", {}, {}),
    "deepseek_v3-recompute": ("deepseek_v3", "rowwise", {}, FULL),
    "llama3-dp2": ("llama3", "rowwise", {"shard": 2}, {}),
    "llama3-dp2-tensorwise": ("llama3", "tensorwise", {"shard": 2}, {}),
    "llama3-tp2": ("llama3", "rowwise", {"tp": 2}, {}),
    "llama3-tp2-tensorwise": ("llama3", "tensorwise", {"tp": 2}, {}),
    "llama3-cp2": ("llama3", "rowwise", {"cp": 2}, {}),
    "deepseek_v3-tp2": ("deepseek_v3", "rowwise", {"tp": 2}, {}),
    "deepseek_v3-ep2": ("deepseek_v3", "rowwise", {"shard": 2, "ep": 2}, {}),
    "deepseek_v3-ep2-recompute": ("deepseek_v3", "rowwise", {"shard": 2, "ep": 2}, FULL),
    "deepseek_v3-ep2-chunked": ("deepseek_v3", "rowwise", {"shard": 2, "ep": 2}, OVERLAP),
    "deepseek_v3-ep2-cut": ("deepseek_v3", "rowwise", {"shard": 2, "ep": 2}, CUT),
}
SHORT = ("llama3-rowwise", "llama3-tp2")


@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in SHORT else pytest.mark.long) for name in CASES]
)
def test_quantized_steps_have_the_bits_of_eager_quantized_linears(case, tmp_path):
    """Every rank quantizes what it has: a scale may belong to a part of a row, in both steps."""
    model, recipe, degrees, changes = CASES[case]
    small = {"parallelism.fsdp": "graph", "model.n_layers": 2, **changes}
    on = ("quantize_matmuls", "gather_float8") if "shard" in degrees else ("quantize_matmuls",)
    quantized = {"passes.on": on, "passes.quantize_matmuls.recipe": recipe}
    captured = plan(model, tmp_path, {**small, "compile.mode": "graph", **quantized}, **degrees)
    eager_changes = {**small, "compile.mode": "eager"}
    if changes is CUT:
        eager_changes |= OVERLAP
    eager = plan(model, tmp_path, eager_changes, **degrees)
    for different in pool.run(2 if degrees else 1, compare_with_eager, captured, eager):
        assert different == []

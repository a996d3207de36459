"""The plan as data: each parameter is cut where tensor and expert parallelism need it, and nothing is forgotten."""

import pytest
import torch
from torch import nn

from monograph.axes import Axis
from monograph.errors import ConfigError
from monograph.models.attention_core import AttentionCore
from monograph.models.attention_kind import CAUSAL
from monograph.models.model import Model, blocks_of
from monograph.models.parallel_plan import ModuleRule, ParallelPlan, matches, plan_column_row_pair
from monograph.parallel.check_plan import check_plan
from monograph.parallel.context_all_gather import AllGatherAttention
from monograph.parallel.mesh import Mesh
from tests.kit.tiny import MODELS, tiny

WHOLE_MATRICES = ("attention.wq_a", "attention.wkv_a", "moe.router.gate")
"""What every rank needs whole: latents that all heads share, and the choice of experts."""
WRITERS = ("attention.wo", "feed_forward.w2", "shared_experts.w2")
"""The second half of a column/row pair."""


def build(model, tmp_path):
    with torch.device("meta"):
        return tiny(model, tmp_path).model.build()


@pytest.mark.parametrize("model", MODELS)
def test_every_matrix_is_cut_unless_all_ranks_need_it_whole(model, tmp_path):
    built = build(model, tmp_path)
    plan = built.parallel_plan()
    for name, parameter in built.named_parameters():
        cuts = {(cut.axis, cut.dim) for cut in plan.cuts_of(name)}
        if parameter.ndim == 1 or any(part in name for part in WHOLE_MATRICES):
            assert cuts == set(), name
        elif parameter.ndim == 3:
            assert cuts == {(Axis.EP, 0), (Axis.ETP, 2 if name.endswith("w2") else 1)}, name
        else:
            assert cuts == {(Axis.TP, 1 if any(part in name for part in WRITERS) else 0)}, name


@pytest.mark.parametrize("model", MODELS)
def test_the_plan_of_every_family_is_accepted(model, tmp_path):
    built = build(model, tmp_path)
    check_plan(built, built.parallel_plan(), Mesh(dp_shard=2, tp=2))


class Part(nn.Module):
    """A module whose plan a test decides."""

    def __init__(self, plan, *, bias=False):
        super().__init__()
        self.into, self.out = nn.Linear(8, 16, bias=bias), nn.Linear(16, 8, bias=bias)
        self.plan_parallel = lambda: plan


class Toy(Model):
    """One block around one part."""

    def __init__(self, plan, *, bias=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.ModuleDict({"part": Part(plan, bias=bias)})])

    def units(self):
        return blocks_of("layers", self.layers)


@pytest.mark.parametrize(
    ("plan", "bias", "said"),
    [
        (plan_column_row_pair(["into.weight"], []), False, "layers.0.part.out.weight is whole on every rank"),
        (plan_column_row_pair(["into.weight", "out.weight"], []), False, "no weight in it is sharded by rows"),
        (plan_column_row_pair([], ["into.weight", "out.weight"]), False, "no weight in it is sharded by columns"),
        (plan_column_row_pair(["intro.weight"], ["out.weight"]), False, "layers.0.part.intro.weight"),
        (plan_column_row_pair(["into.weight"], ["out.weight"]), True, "layers.0.part.into.bias is whole"),
        (plan_column_row_pair(["into.weight", "into.bias"], ["out.weight"]), True, "by rows, and it has a bias"),
        (ParallelPlan(), False, "parallelism.tensor_parallel_degree is 2"),
        (ParallelPlan(modules=(ModuleRule(pattern="output"),)), False, "modules that match 'layers.0.part.output'"),
    ],
    ids=["output whole", "no rows", "no columns", "no such parameter", "bias", "bias of rows", "no plan", "no module"],
)
def test_a_plan_that_would_compute_something_else_is_refused_with_the_path(plan, bias, said):
    model = Toy(plan, bias=bias)
    with pytest.raises(ConfigError) as refused:
        check_plan(model, model.parallel_plan(), Mesh(tp=2))
    assert said in refused.value.what and refused.value.why and refused.value.do


class Positioned(Toy):
    """A model that says what the tokens of a rank are."""

    def step_inputs(self, batch, part):
        return super().step_inputs(batch, part)


def test_context_parallelism_needs_attention_of_whole_sequences_and_inputs_for_parts_of_them():
    for model in (Toy(ParallelPlan()), Positioned(ParallelPlan())):
        with pytest.raises(ConfigError) as refused:
            check_plan(model, model.parallel_plan(), Mesh(cp=2))
        assert "no module that attends to whole sequences" in refused.value.why
        assert "mg.AttentionCore" in refused.value.do
    core = AttentionCore(CAUSAL, scale=1.0)
    unknowing, knowing = Toy(ParallelPlan()), Positioned(ParallelPlan())
    for model in (unknowing, knowing):
        model.layers[0]["part"] = core
    with pytest.raises(ConfigError) as refused:
        check_plan(unknowing, unknowing.parallel_plan(), Mesh(cp=2))
    assert "which positions the tokens of a rank have" in refused.value.why and "step_inputs" in refused.value.do
    check_plan(knowing, knowing.parallel_plan(), Mesh(cp=2))
    q = torch.zeros(1, 4, 1, 2)
    with pytest.raises(ConfigError, match="attention got no segments"):
        AllGatherAttention(core, 2)(q, q, q)


def test_a_whole_plan_and_a_weight_that_is_replicated_on_purpose_are_accepted():
    good = Toy(plan_column_row_pair(["into.weight"], ["out.weight"]))
    check_plan(good, good.parallel_plan(), Mesh(tp=2))
    shared = plan_column_row_pair(["into.weight"], ["out.weight"], replicated=["extra.weight"])
    model = Toy(shared)
    model.layers[0]["part"].extra = nn.Linear(8, 8, bias=False)
    check_plan(model, model.parallel_plan(), Mesh(tp=2))


def test_a_pattern_matches_whole_paths_only():
    assert matches("layers.*.attention.w[qkv].weight", "layers.11.attention.wq.weight")
    assert not matches("layers.*.attention.w[qkv].weight", "layers.11.attention.wo.weight")
    assert not matches("layers.*.attention", "layers.0.attention.wq")
    assert not matches("layers.*", "layers.0.attention")

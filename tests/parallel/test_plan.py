"""The plan as data: each parameter is cut where tensor and expert parallelism need it, and nothing is forgotten."""

import pytest
import torch

from monograph.axes import Axis
from monograph.parallel.plan import DECODER_PLAN, matches
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
    for name, parameter in build(model, tmp_path).named_parameters():
        cuts = {(cut.axis, cut.dim) for cut in DECODER_PLAN.cuts_of(name)}
        if parameter.ndim == 1 or any(part in name for part in WHOLE_MATRICES):
            assert cuts == set(), name
        elif parameter.ndim == 3:
            assert cuts == {(Axis.EP, 0), (Axis.ETP, 2 if name.endswith("w2") else 1)}, name
        else:
            assert cuts == {(Axis.TP, 1 if any(part in name for part in WRITERS) else 0)}, name


@pytest.mark.parametrize("model", MODELS)
def test_no_rule_is_dead_and_no_pair_is_half(model, tmp_path):
    paths = [path for path, _ in build(model, tmp_path).named_modules()]
    for rule in DECODER_PLAN.modules:
        has_both = (rule.on_input is None) == (rule.on_output is None)
        assert has_both or rule.pattern in ("embedding", "head.norm")
    used = {rule.pattern for rule in DECODER_PLAN.modules for path in paths if matches(rule.pattern, path)}
    assert used >= {"embedding", "layers.*.attention", "head.norm"}


def test_every_rule_serves_some_model(tmp_path):
    names, paths = [], []
    for model in MODELS:
        built = build(model, tmp_path)
        names += [name for name, _ in built.named_parameters(remove_duplicate=False)]
        paths += [path for path, _ in built.named_modules()]
    assert all(any(matches(rule.pattern, name) for name in names) for rule in DECODER_PLAN.parameters)
    assert all(any(matches(rule.pattern, path) for path in paths) for rule in DECODER_PLAN.modules)


def test_a_pattern_matches_whole_paths_only():
    assert matches("layers.*.attention.w[qkv].weight", "layers.11.attention.wq.weight")
    assert not matches("layers.*.attention.w[qkv].weight", "layers.11.attention.wo.weight")
    assert not matches("layers.*.attention", "layers.0.attention.wq")
    assert not matches("layers.*", "layers.0.attention")

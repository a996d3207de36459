"""Frozen parameters: forward reads them, nothing changes them, and nothing is kept or computed for them."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.models.freeze import freeze
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step
from tests.execute.updates import CPU, differences, make_updates
from tests.kit.tiny import tiny

FROZEN = ("embedding.*", "layers.0.*", "layers.1.*norm*")
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}


def frozen(folder, changes=None, model="deepseek_v3"):
    return tiny(model, folder, {"training.freeze": FROZEN, "parallelism.fsdp": "graph", **(changes or {})})


@pytest.mark.parametrize("mode", [pytest.param("none", marks=pytest.mark.long), "full"])
def test_graph_mode_has_the_bits_of_eager_and_frozen_parameters_stay(mode, tmp_path):
    policy = {"activation_checkpoint.mode": mode}
    with joined_groups(Mesh(), CPU) as groups:
        eager = make_updates(frozen(tmp_path, policy), groups, routings=((), (2, 3)))
        graph = make_updates(frozen(tmp_path, GRAPH | policy), groups, routings=((), (2, 3)))
        whole = make_updates(tiny("deepseek_v3", tmp_path, fsdp="graph"), groups, routings=((), (2, 3)))
    assert differences(eager, graph) == []
    first, last = eager[0].bits, eager[-1].bits
    changed = {name for name in first if name.startswith("updated ") and first[name] != last[name]}
    assert "updated layers.1.attention.wo.weight" in changed
    assert not any(name.startswith(("updated embedding", "updated layers.0.")) for name in changed)
    assert "updated layers.1.attention_norm.weight" not in changed
    assert whole[0].loss == eager[0].loss and whole[-1].loss != eager[-1].loss


def test_frozen_parameters_have_no_gradient_no_moments_and_no_part_in_the_norm(tmp_path):
    config = frozen(tmp_path, GRAPH)
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        optimizer = config.optimizer.build(parameters=step.trained)
        tokens = torch.randint(0, 250, (1, 32), generator=torch.Generator().manual_seed(0))
        batch = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
        step(batch, step.compute_scalars([batch]))
        gradients = {name: p.grad for name, p in step.parameters.items() if p.grad is not None}
        norm = step.grad_norm()
    assert set(gradients) == set(step.trained) < set(step.parameters)
    assert not any(name.startswith(("embedding", "layers.0.")) for name in gradients)
    assert {name for _, name in optimizer.state()} == set(gradients)
    assert norm.item() == pytest.approx(sum(g.double().square().sum() for g in gradients.values()).item() ** 0.5)


def test_a_frozen_weight_has_no_gradient_to_compute(tmp_path):
    config = tiny("llama3", tmp_path)
    whole, part = config.model.build(), config.model.build()
    freeze(part, ["layers.0.feed_forward.*"])
    weights = sum(p.numel() for p in part.layers[0].feed_forward.parameters())
    assert whole.flops(32).matmul - part.flops(32).matmul == 2 * weights


def test_patterns_that_match_nothing_or_everything_are_refused(tmp_path):
    model = tiny("llama3", tmp_path).model.build()
    with pytest.raises(ConfigError, match=r"layer\.0\.\*', which no parameter matches"):
        freeze(model, ["layer.0.*"])
    with pytest.raises(ConfigError, match="all parameters are frozen"):
        freeze(model, ["*"])

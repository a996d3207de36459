"""verify sees a wrong update under the settings of published recipes, whose first rates are too small for fp32."""

from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch

import monograph.train.adamw
from monograph.execute.sharded import ShardedStep
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.run import train
from monograph.train.adamw import AdamW
from monograph.train.lr_plan import LrPlan
from monograph.verify.run import verify
from monograph.verify.traced_run import TracedRun
from tests.kit.runs import read_step
from tests.kit.tiny import tiny

RECIPES = ("llama3_8b", "llama3_405b")
"""Warmups of 2000 and of 8000 steps."""
SIZES = {"seq_len": 32, "local_batch_size": 1, "global_batch_size": 2}


def published(name, folder, changes=None):
    """A tiny model with the training, the optimizer and the schedule of a published recipe."""
    recipe = load_recipe(name)
    config = tiny("llama3", folder, {"model.init_std": 0.02, **(changes or {})})
    return config.replace(
        training=recipe.training.replace(**SIZES), optimizer=recipe.optimizer, lr_scheduler=recipe.lr_scheduler
    )


def verify_alone(config):
    with joined_groups(Mesh(), torch.device("cpu")) as groups:
        return verify(config, groups)


@contextmanager
def made_with(updates=0, **changes):
    """AdamW takes other numbers than its settings say, or has counted updates that were not made."""
    honest = AdamW.__init__

    def init(self, config, **context):
        honest(self, config.replace(**changes), **context)
        self.set_updates(updates)

    with patch.object(AdamW, "__init__", init):
        yield


def at_another_rate(factor):
    honest = AdamW.step
    return patch.object(AdamW, "step", lambda self, lr, **numbers: honest(self, factor * lr, **numbers))


def one_step_late():
    honest = LrPlan.lr
    return patch.object(LrPlan, "lr", lambda self, step: honest(self, step + 1))


def evaluation_that_overwrites_gradients():
    honest = ShardedStep.run_evaluation

    def run(self, *given):
        for parameter in self.trained.values():
            parameter.grad.mul_(2)
        return honest(self, *given)

    return patch.object(ShardedStep, "run_evaluation", run)


FAULTS = {
    "no clipping": (lambda: patch.object(monograph.train.adamw, "find_excess_norm", lambda *_: None), "state differs"),
    "no weight decay": (lambda: made_with(weight_decay=0.0), "update differs"),
    "other betas": (lambda: made_with(beta1=0.0, beta2=0.5), "state differs"),
    "updates counted from 1": (lambda: made_with(updates=1), "update differs"),
    "another rate": (lambda: at_another_rate(1.01), "update differs"),
    "no update": (lambda: patch.object(AdamW, "step", lambda *_, **__: None), "state differs"),
    "a schedule one step late": (one_step_late, "learning rate: it differs"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_an_update_under_published_settings_is_what_its_formula_says(recipe, tmp_path):
    verdict = verify_alone(published(recipe, tmp_path))
    assert verdict.is_equal, verdict.blame
    with_state = [row for row in verdict.all.rows.values() if row.gradient is not None]
    assert with_state and all(row.state is not None and row.updated is not None for row in with_state)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_update_under_published_settings_is_found(fault, recipe, tmp_path):
    plant, blame = FAULTS[fault]
    config = published(recipe, tmp_path)
    with plant():
        verdict = verify_alone(config)
    assert not verdict.is_equal and blame in verdict.blame, verdict.blame


@pytest.mark.parametrize("plant", [nullcontext, evaluation_that_overwrites_gradients])
def test_an_evaluation_is_compared_and_may_not_touch_the_gradients(plant, tmp_path):
    changes = {"validator.interval": 5, "parallelism.fsdp": "graph"}
    with plant():
        verdict = verify_alone(published("llama3_8b", tmp_path, changes))
    assert "evaluation loss" in verdict.all.metrics
    assert verdict.is_equal == (plant is nullcontext), verdict.blame


def test_weights_that_a_run_starts_from_are_loaded_on_both_sides_and_compared(tmp_path):
    name = "layers.1.attention.wq.weight"
    train(tiny("llama3", tmp_path, {"training.steps": 1, "lr_scheduler.warmup_steps": 0}))
    saved = read_step(tmp_path / "run", 1)[f"model/{name}"]
    start = {"checkpoint.initial_load_path": str(tmp_path / "run" / "checkpoints"), "parallelism.fsdp": "graph"}
    honest = TracedRun.__init__

    def with_factor(factor):
        def init(self, *given, **options):
            honest(self, *given, **options)
            weight = self.step.parameters[name].detach()
            assert torch.equal(weight, saved), "read from the checkpoint"
            weight.mul_(factor)

        with patch.object(TracedRun, "__init__", init):
            return verify_alone(tiny("llama3", tmp_path / "other", start))

    verdict = with_factor(1)
    assert verdict.is_equal, verdict.blame
    assert with_factor(-1).blame.startswith("layers.1.attention.wq: its starting values differ")

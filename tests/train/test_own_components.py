"""The examples: data, tokenizer, optimizer and schedule from outside the package, by flags alone."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from examples.own_optimizer import Lion, Triangle
from monograph import cli
from monograph.config.json_form import parse_json
from monograph.errors import ConfigError
from monograph.train.adamw import AdamW
from monograph.train.layout import plan_run_mesh
from monograph.train.optimizer import Optimizer
from monograph.train.optimizer_config import OptimizerConfig
from tests.kit.ranks import pool
from tests.kit.runs import differing, read_exact, read_records, read_step, tiny_run
from tests.kit.tiny import tiny
from tests.parallel.rank_work import run_trainer
from tests.verify.on_ranks import verify_on_ranks

LION = ["--optimizer", "examples.own_optimizer:Lion.Config", "--optimizer.beta2", "0.95"]
SUMS = ["--dataloader.source", "examples.own_data:Sums", "--dataloader.source.samples", "100"]
OWN = [*LION, "--lr_scheduler", "examples.own_optimizer:Triangle"]
FINE = {"loss": torch.tensor(1.0), "grad_norm": torch.tensor(1.0)}


def train(folder, *words, recipe="tiny"):
    """Train a tiny recipe on the command line."""
    assert cli.main(["train", f"tests.kit.runs:{recipe}", "--job.dump_folder", str(folder), *words]) == 0
    return folder


@pytest.mark.parametrize("mode", [pytest.param("eager", marks=pytest.mark.long), "graph"])
def test_own_optimizer_schedule_and_data_train_by_flags_and_resume_to_the_bit(mode, tmp_path):
    steps = ["--checkpoint.interval", "2", "--training.steps"]
    words = [*OWN, *SUMS, "--compile.mode", mode]
    whole = train(tmp_path / "whole", *words, *steps, "4", "--checkpoint.keep_last", "0", recipe="tiny_dense")
    resumed = train(
        tmp_path / "resumed",
        *words,
        *steps,
        "4",
        "--checkpoint.load",
        str(whole / "checkpoints" / "step-00000002"),
        recipe="tiny_dense",
    )
    assert differing(read_step(whole, 4), read_step(resumed, 4)) == []
    assert read_exact(resumed) == read_exact(whole)[2:]
    state = read_step(whole, 4)
    assert any(name.startswith("optimizer/momentum/") and value.any() for name, value in state.items())
    config = parse_json((whole / "config.json").read_text())
    assert type(config.optimizer) is Lion.Config and type(config.lr_scheduler) is Triangle.Config
    assert config.optimizer.beta2 == 0.95


def test_own_text_and_tokenizer_train_by_flags(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"paragraph {number}: " + "word " * number for number in range(60)))
    words = ["--dataloader.source", "examples.own_data:Paragraphs", "--dataloader.source.path", str(text)]
    folder = train(
        tmp_path / "run",
        *words,
        "--tokenizer",
        "examples.own_data:Characters",
        "--validator.interval",
        "3",
        "--dataloader.held_out_fraction",
        "0.2",
    )
    records = read_records(folder)
    assert len([record for record in records if "loss" in record]) == 3
    assert any("validation_loss" in record for record in records)


@pytest.mark.long
def test_modes_agree_on_an_own_optimizer(tmp_path):
    losses = [
        [record["loss"] for record in read_records(train(tmp_path / mode, *OWN, "--compile.mode", mode))]
        for mode in ("eager", "graph")
    ]
    assert losses[0] == losses[1] and len(losses[0]) == 3


def test_fast_numerics_skip_what_needs_a_single_pass_optimizer_and_say_why(tmp_path, capfd):
    words = [*LION, "--compile.mode", "graph", "--compile.numerics", "fast", "--training.compute_dtype", "bfloat16"]
    folder = train(tmp_path / "run", *words, "--debug.log_level", "debug", recipe="tiny_dense")
    said = capfd.readouterr().err + (folder / "logs" / "rank-0.log").read_text()
    assert "the optimizer reads wide gradients" in said
    numerics = (folder / "numerics.txt").read_text()
    assert "narrow_gradients" not in numerics and "single_pass" not in numerics


def test_asking_for_a_pass_that_needs_a_single_pass_is_refused(capsys):
    words = ["config", "tests.kit.runs:tiny", *LION, "--compile.mode", "graph", "--passes.on", "narrow_gradients"]
    assert cli.main(words) == 2
    error = capsys.readouterr().err
    assert "narrow_gradients" in error and "Lion.Config" in error


def test_an_optimizer_without_a_compiled_form_is_refused_by_its_name(tmp_path):
    components = {"compile.mode": "layer", "compile.components": ("model", "optimizer")}
    tiny_run(tmp_path, components)
    with pytest.raises(ConfigError, match=r"compile\.components has optimizer and it is Lion\.Config"):
        tiny_run(tmp_path, {"optimizer": Lion.Config(), **components})


def test_an_update_is_clipped_counted_and_left_out_once_a_number_was_not_finite():
    class Descent(Optimizer):
        def update(self, parameter, gradient, state, lr):
            parameter.sub_(gradient, alpha=lr)

    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = Descent(Optimizer.Config(), parameters={"w": weight})
    weight.grad = torch.full((2,), 4.0)
    optimizer.step(0.5, loss=torch.tensor(1.0), grad_norm=torch.tensor(8.0), max_norm=2.0)
    assert torch.allclose(weight, torch.full((2,), -0.5)) and optimizer.updates == 1
    weight.grad = torch.full((2,), 4.0)
    before = weight.detach().clone()
    optimizer.step(0.5, loss=torch.tensor(float("nan")), grad_norm=torch.tensor(8.0))
    optimizer.step(0.5, **FINE)
    assert torch.equal(weight, before) and optimizer.updates == 1
    optimizer.clear_gradients()
    assert weight.grad is None


class Normalized(Optimizer):
    """Every parameter moves by the rate along its gradient: the norm is that of a whole parameter."""

    @dataclass(kw_only=True, slots=True)
    class Config(Optimizer.Config):
        """Nothing to set."""

    def update(self, parameter, gradient, state, lr):
        parameter.sub_(gradient, alpha=lr / float(gradient.norm() + 1e-8))


class Said(Normalized):
    elementwise = False

    @dataclass(kw_only=True, slots=True)
    class Config(Normalized.Config):
        """Nothing to set."""


class Wrong(Normalized):
    elementwise = True

    @dataclass(kw_only=True, slots=True)
    class Config(Normalized.Config):
        """Nothing to set."""


class OtherAdamW(AdamW):
    @dataclass(kw_only=True, slots=True)
    class Config(AdamW.Config):
        """AdamW's."""

    def step(self, lr, **numbers):
        pass


@dataclass(kw_only=True, slots=True)
class NamedConfig(OptimizerConfig):
    """Names its optimizer by a text, as one does in a file of its own."""

    owner: ClassVar[str] = f"{__name__}:Named"


class Named(Said):
    Config = NamedConfig


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Named, "Named is not elementwise"),
        (Normalized, "Normalized does not say whether it is elementwise"),
        (Said, "Said is not elementwise, and parameters are sharded over 2 ranks"),
        (OtherAdamW, "OtherAdamW does not say whether it is elementwise"),
    ],
)
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}, {"cp": 2}])
def test_an_optimizer_that_may_need_whole_parameters_is_refused_where_they_are_sharded(kind, words, degrees, tmp_path):
    config = tiny("llama3", tmp_path, {"optimizer": kind.Config()}, **degrees)
    with pytest.raises(ConfigError, match=words):
        plan_run_mesh(config, 2)


def test_whole_parameters_take_any_optimizer_and_shards_those_that_are_elementwise(tmp_path):
    for degrees in ({"replicate": 2, "shard": 1}, {"pipeline_parallel_degree": 2}):
        changes = {"optimizer": Said.Config(), "compile.mode": "graph", "training.global_batch_size": 4}
        plan_run_mesh(tiny("llama3", tmp_path, changes, **degrees), 2)
    plan_run_mesh(tiny("llama3", tmp_path, {"optimizer": Said.Config()}), 1)
    for chosen in ({"optimizer": Lion.Config()}, {}):
        plan_run_mesh(tiny("llama3", tmp_path, chosen, tp=2), 2)


def test_verify_finds_an_optimizer_that_is_not_as_elementwise_as_it_says(tmp_path):
    verdict = pool.run(2, verify_on_ranks, tiny("llama3", tmp_path, {"optimizer": Wrong.Config()}))[0]
    assert "its update differs" in verdict.blame


def test_a_triangle_rises_to_the_middle_and_falls_again():
    schedule = Triangle.Config(floor=0.2).build(peak=2.0, steps=10)
    assert [round(schedule.lr(step), 6) for step in (5, 10)] == [2.0, 0.4]
    assert schedule.lr(2) == pytest.approx(schedule.lr(8))


def test_own_optimizer_state_moves_to_another_mesh_bit_for_bit(tmp_path):
    changes = {"optimizer": Lion.Config(), "checkpoint.interval": 2, "lr_scheduler.decay": "constant"}
    changes["training.global_batch_size"] = 2
    saved = pool.run(2, run_trainer, tiny("llama3", tmp_path / "two", {**changes, "training.steps": 2}, fsdp="graph"))[
        0
    ]
    assert any(value.any() for value in saved.moments.values()) and all("momentum/" in name for name in saved.moments)
    load = {"checkpoint.load": str(tmp_path / "two" / "run" / "checkpoints" / "step-00000002"), "training.steps": 2}
    loaded = pool.run(2, run_trainer, tiny("llama3", tmp_path / "tp", {**changes, **load}, tp=2))[0]
    for one, other in ((saved.parameters, loaded.parameters), (saved.moments, loaded.moments)):
        assert one.keys() == other.keys() and [name for name in one if not torch.equal(one[name], other[name])] == []


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path, capsys):
    train(tmp_path / "adamw")
    load = ["--checkpoint.load", str(tmp_path / "adamw" / "checkpoints" / "step-00000003"), "--training.steps", "5"]
    load += ["--lr_scheduler.on_extend", "hold"]
    words = ["train", "tests.kit.runs:tiny", "--job.dump_folder", str(tmp_path / "lion"), *LION, *load]
    assert cli.main(words) != 0
    assert "optimizer/momentum" in capsys.readouterr().err


def test_tiny_runs_take_components_from_recipes_too(tmp_path):
    config = tiny_run(tmp_path, {"optimizer": Lion.Config(lr=1e-3)})
    assert type(config.plan_optimizer()) is Lion.Config

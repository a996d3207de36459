"""One command trains a real model: debug recipes learn from the built-in corpus."""

import pytest

from monograph.cli import main
from monograph.run import train
from tests.kit.runs import read_records, tiny_run

MORE = ("llama3_debugmodel", "qwen3_debugmodel", "qwen3_debugmodel_moe")
RECIPES = ("deepseek_v3_debugmodel", *(pytest.param(name, marks=pytest.mark.long) for name in MORE))
LESS = {
    "training.steps": 40,
    "training.local_batch_size": 2,
    "training.seq_len": 96,
    "validator.samples": 6,
    "checkpoint.enabled": False,
    "metrics.progress": "off",
}


@pytest.mark.long
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_debug_recipe_brings_the_loss_clearly_down(tmp_path, recipe, capsys):
    flags = [word for name, value in LESS.items() for word in (f"--{name}", str(value))]
    assert main(["train", recipe, *flags, "--job.dump_folder", str(tmp_path)]) == 0
    records = read_records(tmp_path)
    losses = [record["loss"] for record in records if "loss" in record]
    (held_out,) = [record["validation_loss"] for record in records if "validation_loss" in record]
    assert losses[0] > 5.5, "at first every token is about as likely as any other"
    assert sum(losses[-10:]) / 10 < 3.3 and held_out < 3.3, "measured: 2.7 to 3.0"
    shown = capsys.readouterr().out
    assert "training finished" in shown and f"-> {losses[-1]:.4f} (step 40)" in shown and f"{held_out:.4f}" in shown


def test_a_repeated_text_is_learned_by_heart(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be, that is the question. " * 200)
    changes = {"dataloader.dataset": str(tmp_path / "text.txt"), "dataloader.held_out_fraction": 0.0}
    config = tiny_run(tmp_path / "run", changes | {"training.steps": 120, "optimizer.lr": 1e-2})
    summary = train(config)
    assert summary.first["loss"] > 5 and summary.last["loss"] < 0.5

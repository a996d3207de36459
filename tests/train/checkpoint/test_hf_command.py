"""`monograph hf import` and `monograph hf export`."""

import subprocess
import sys

import pytest
import torch

from monograph.config.configurable import check_config
from monograph.config.json_form import dump_json, to_json
from monograph.errors import CheckpointError, ConfigError
from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.checkpoint.arguments import HfExportArguments, HfImportArguments
from monograph.train.checkpoint.hf_command import export_command, import_command
from tests.train.checkpoint.disks import make_manager
from tests.train.checkpoint.theirs import read_all, same_bits, write_theirs


def test_a_model_goes_in_and_out_by_command(tmp_path, capsys):
    write_theirs(tmp_path / "theirs", "qwen3")
    assert import_command(HfImportArguments(source=str(tmp_path / "theirs"), out=str(tmp_path / "ours"))) == 0
    said = capsys.readouterr().out
    assert "Qwen3" in said
    assert f"monograph train --model.from {tmp_path / 'ours'}" in said
    assert export_command(HfExportArguments(checkpoint=str(tmp_path / "ours"), out=str(tmp_path / "back"))) == 0
    assert same_bits(read_all(tmp_path / "back"), read_all(tmp_path / "theirs"))


def test_a_training_checkpoint_is_exported_the_newest_by_default(tmp_path):
    config = write_run(tmp_path / "run", to_values=lambda model: {"model": to_json(model)})
    arguments = HfExportArguments(checkpoint=str(tmp_path / "run"), out=str(tmp_path / "back"), dtype="bfloat16")
    assert export_command(arguments) == 0
    back = read_all(tmp_path / "back")
    assert {tensor.dtype for tensor in back.values()} == {torch.bfloat16}
    assert all((tensor == 2).all() for tensor in back.values()), "step 2 is the newest"
    assert back["model.embed_tokens.weight"].shape == (config.vocab_size, config.dim)


def test_the_model_can_be_told_by_a_runs_config_or_by_one_of_theirs(tmp_path):
    model = write_run(tmp_path / "run", to_values=lambda model: {})
    with pytest.raises(CheckpointError, match="--config"):
        export_command(HfExportArguments(checkpoint=str(tmp_path / "run"), out=str(tmp_path / "back")))
    recipe = llama3_debugmodel()
    recipe.model = model
    (tmp_path / "run.json").write_text(dump_json(recipe))
    (tmp_path / "model.json").write_text(dump_json(model))
    for name in ("run.json", "model.json"):
        out = tmp_path / f"back-{name}"
        export_command(HfExportArguments(checkpoint=str(tmp_path / "run"), out=str(out), config=str(tmp_path / name)))
        assert (out / "model.safetensors").exists()
    out, config = tmp_path / "again", tmp_path / "back-run.json" / "config.json"
    export_command(HfExportArguments(checkpoint=str(tmp_path / "run"), out=str(out), config=str(config)))
    assert same_bits(read_all(out), read_all(tmp_path / "back-run.json"))


def write_run(folder, to_values):
    """Two checkpoints of a small model, filled with the number of their step, as a run would save them."""
    model = llama3_debugmodel().model
    model.n_layers, model.vocab_size = 1, 64
    state = {f"model/{name}": tensor.detach() for name, tensor in model.build().state_dict().items()}
    with make_manager(folder) as manager:
        for step in (1, 2):
            live = {name: torch.full_like(tensor, step) for name, tensor in state.items()}
            moments = {name.replace("model/", "optimizer/exp_avg/"): tensor for name, tensor in live.items()}
            manager.save(step, live | moments, to_values(model))
    return model


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (HfImportArguments(source="/no/such", out="x"), "no folder /no/such"),
        (HfImportArguments(source="/", out="x"), "no config.json"),
        (HfImportArguments(out="/usr"), "exists"),
        (HfExportArguments(checkpoint="/no/such", out="x"), "no such folder"),
        (HfExportArguments(checkpoint="/", out="x", config="/no/such"), "no such file"),
        (HfExportArguments(checkpoint="/", out="x", max_file_gb=0), "max_file_gb"),
        (HfExportArguments(checkpoint="/", out="/usr"), "exists"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        check_config(arguments)


def test_arguments_and_settings_load_without_torch():
    code = (
        "import sys, monograph.train.checkpoint.arguments, monograph.train.checkpoint.config; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

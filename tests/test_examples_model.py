"""examples/own_model: what the models of the package can do, a model from outside can, without an edit in monograph."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from examples.own_model import hf
from examples.own_model.config import Starcoder2Config
from examples.own_model.recipe import starcoder2_debugmodel
from monograph.cli import main
from monograph.models.hf_tensors import import_tensors
from monograph.models.init import reset
from monograph.parts import AttentionConfig, RopeConfig
from monograph.train.records import read_records
from tests.kit.ranks import pool
from tests.verify.on_ranks import verify_on_ranks

ROOT = Path(__file__).parent.parent
RECIPE = "examples.own_model.recipe:starcoder2_debugmodel"
SMALL = [
    "--model.n_layers",
    "2",
    "--training.seq_len",
    "32",
    "--training.local_batch_size",
    "2",
    "--metrics.progress",
    "off",
]
SHORT = [*SMALL, "--training.steps", "3", "--checkpoint.enabled", "true", "--checkpoint.save_last", "true"]


def losses(folder):
    return [record["loss"] for record in read_records(folder / "metrics.jsonl") if "loss" in record]


def test_every_file_of_the_example_is_short_and_nothing_in_the_package_knows_it():
    files = sorted((ROOT / "examples" / "own_model").glob("*.py"))
    assert len(files) == 5 and all(len(file.read_text(encoding="utf-8").splitlines()) < 120 for file in files)
    package = [file.read_text(encoding="utf-8") for file in (ROOT / "monograph").rglob("*.py")]
    assert not any("starcoder" in text.lower() for text in package)


def test_it_trains_in_graph_mode_from_an_artifact_and_exports_what_transformers_loads(tmp_path):
    assert main(["train", RECIPE, *SHORT, "--job.dump_folder", str(tmp_path / "run")]) == 0
    assert main(["precompile", RECIPE, *SMALL, "--out", str(tmp_path / "artifact")]) == 0
    again = ["--job.dump_folder", str(tmp_path / "again"), "--compile.artifact", str(tmp_path / "artifact")]
    assert main(["train", RECIPE, *SHORT, *again]) == 0
    eager = ["--job.dump_folder", str(tmp_path / "eager"), "--compile.mode", "eager"]
    assert main(["train", RECIPE, *SHORT, *eager]) == 0
    assert losses(tmp_path / "run") == losses(tmp_path / "again") == losses(tmp_path / "eager"), "bit for bit"
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    assert main(["hf", "export", str(checkpoint), str(tmp_path / "exported")]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32).eval()
    assert type(theirs).__name__ == "Starcoder2ForCausalLM"
    config = hf.from_hf_config(json.loads((tmp_path / "exported" / "config.json").read_text(encoding="utf-8")))
    check_logits(config, load_file(tmp_path / "exported" / "model.safetensors"), theirs)
    assert main(["hf", "import", str(tmp_path / "exported"), str(tmp_path / "imported")]) == 0


def check_logits(config, tensors, theirs):
    ours = config.build().eval()
    reset(ours)
    ours.load_state_dict(import_tensors(hf.entries(config), tensors))
    tokens = torch.arange(38).reshape(2, 19) % config.vocab_size
    with torch.no_grad():
        assert (ours.predict(tokens) - theirs(tokens).logits).abs().max() <= 1e-5


@pytest.mark.parametrize(("n_heads", "n_kv_heads", "dim"), [(6, 2, 48), (5, 5, 40), (4, 1, 24)])
def test_odd_shapes_have_their_logits(n_heads, n_kv_heads, dim):
    config = Starcoder2Config(
        vocab_size=61,
        dim=dim,
        n_layers=2,
        hidden_dim=3 * dim + 1,
        norm_eps=1e-4,
        attention=AttentionConfig(n_heads=n_heads, n_kv_heads=n_kv_heads),
        rope=RopeConfig(max_seq_len=64, theta=777.0),
    )
    torch.manual_seed(n_heads)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**hf.to_hf_config(config)), dtype=torch.float32
    ).eval()
    check_logits(config, theirs.state_dict(), theirs)


@pytest.mark.parametrize("changed", [{"use_bias": True}, {"sliding_window": 64}, {"hidden_act": "silu"}])
def test_what_it_cannot_do_is_refused(changed):
    with pytest.raises(Exception, match=next(iter(changed))):
        hf.from_hf_config(hf.to_hf_config(Starcoder2Config()) | changed)


@pytest.mark.parametrize(
    "degrees",
    [
        pytest.param({"dp_shard": 2}, id="dp2", marks=pytest.mark.long),
        pytest.param({"tp": 2}, id="tp2"),
        pytest.param({"cp": 2}, id="cp2", marks=pytest.mark.long),
    ],
)
def test_two_ranks_compute_what_one_device_computes(degrees, tmp_path):
    config = starcoder2_debugmodel()
    config.model.n_layers, config.training.seq_len, config.training.local_batch_size = 2, 32, 2
    config.parallelism.tensor_parallel_degree = degrees.get("tp", 1)
    config.parallelism.context_parallel_degree = degrees.get("cp", 1)
    config.job.dump_folder, config.debug.device = str(tmp_path), "cpu"
    verdict = pool.run(2, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame

"""Degrees that cannot work are refused before anything starts: with the numbers, what would work, and no torch."""

import json
import os
import resource
import subprocess
import sys

import pytest

from monograph.commands.request import read_request
from monograph.config.configurable import BaseConfig
from monograph.errors import ConfigError
from monograph.models.config import FeedForwardConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.tiny import tiny
from tests.test_cli import RUN_MANY

TP, EP, ETP = (f"--parallelism.{name}_parallel_degree" for name in ("tensor", "expert", "expert_tensor"))
CP, ULYSSES = "--parallelism.context_parallel_degree", "--parallelism.context_parallel_method ulysses"
LATENT = "--parallelism.context_parallel_gather latent"
REFUSED = {
    f"llama3_debugmodel --ranks 4 {TP} 3": ("ask for 3 ranks (tensor_parallel_degree 3) but there are 4", "--ranks 3"),
    f"llama3_debugmodel --ranks 8 {TP} 8": ("model.attention.n_kv_heads is 4 but parallelism.tensor", f"{TP} 4"),
    f"deepseek_v3_debugmodel --ranks 8 {TP} 8": ("model.attention.n_heads is 4 but parallelism.tensor", f"{TP} 4"),
    f"qwen3_debugmodel_moe --ranks 12 {EP} 12": ("model.moe.n_experts is 8 but parallelism.expert", f"{EP} 4"),
    f"llama3_debugmodel --ranks 4 {TP} 4 --training.seq_len 254": ("training.seq_len is 254", f"{TP} 2"),
    f"llama3_debugmodel --ranks 4 {TP} 4 --model.feed_forward.hidden_dim 770": ("hidden_dim is 770", f"{TP} 2"),
    f"qwen3_debugmodel_moe --ranks 2 {TP} 2 {ETP} 2 --model.moe.hidden_dim 33": ("hidden_dim is 33", f"{ETP} 1"),
    f"deepseek_v3_debugmodel --ranks 4 {TP} 4 {ETP} 2": ("expert_tensor_parallel_degree is 2", f"{ETP} 1 or 4"),
    f"deepseek_v3_debugmodel --ranks 2 {EP} 4": ("expert_parallel_degree 4 x", f"{EP} 2"),
    f"llama3_debugmodel --ranks 2 {EP} 2": ("expert_parallel_degree is 2", f"{EP} 1"),
    "llama3_debugmodel --ranks 4 --training.global_batch_size 24": ("= 16", "--training.global_batch_size 32"),
    f"llama3_debugmodel --ranks 2 {CP} 2 --training.seq_len 254": ("training.seq_len is 254", "seq_len 256"),
    f"llama3_debugmodel --ranks 8 {TP} 4 {CP} 2 --training.seq_len 260": ("training.seq_len is 260", "seq_len 256"),
    f"qwen3_debugmodel_moe --ranks 16 {CP} 16 {ULYSSES}": ("n_heads is 8 but parallelism.context", "all_gather"),
    f"llama3_debugmodel --ranks 2 {CP} 2 {LATENT}": (
        "context_parallel_gather is latent",
        "context_parallel_gather auto",
    ),
    f"deepseek_v3_debugmodel {LATENT}": ("context_parallel_gather is latent while", f"{CP} 2"),
    f"deepseek_v3_debugmodel --ranks 2 {CP} 2 {LATENT} {ULYSSES}": ("context_parallel_gather is latent", "all_gather"),
    f"llama3_debugmodel {ULYSSES}": ("context_parallel_method is ulysses while", f"{CP} 2"),
    "llama3_debugmodel --ranks -2": ("--ranks must be >= 0, got -2", "--ranks 2"),
    f"llama3_debugmodel {TP} 2": ("ask for 2 ranks (tensor_parallel_degree 2) but there are 1", "--ranks 2 "),
}
WITHOUT_TORCH = """
import sys
from monograph.cli import main
code = main(sys.argv[1:])
sys.exit("torch was imported" if "torch" in sys.modules else code)
"""


@pytest.fixture(scope="module")
def answers():
    """Every line, run in one interpreter that has no torch: words -> (code, stdout, stderr, seconds).

    Seconds are of the processor, and those of the start of the interpreter and of all imports are added to each.
    """
    lines = [["verify" if "qwen3" in words else "train", *words.split()] for words in REFUSED]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY], input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = json.loads(done.stdout)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    start = spent - sum(seconds for *_, seconds in found)
    return {words: (*said, start + seconds) for words, (*said, seconds) in zip(REFUSED, found, strict=True)}


@pytest.mark.parametrize("words", REFUSED)
def test_invalid_degrees_end_with_exit_code_2_within_two_seconds_and_without_torch(words, answers):
    said, advice = REFUSED[words]
    code, _, err, seconds = answers[words]
    assert code == 2, err
    assert said in err and advice in err.split("do:")[1], err
    assert seconds < 2


def test_ranks_under_a_launcher_are_refused():
    environment = os.environ | {"WORLD_SIZE": "4", "RANK": "0"}
    words = ["train", "llama3_debugmodel", "--ranks", "4"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 2 and "under a launcher that started 4 ranks" in done.stderr


def test_the_nearest_choice_serves_every_part_of_the_model(tmp_path):
    """12 heads and 12 hidden channels would take tp 12, 6 or 4; 6 kv heads and 9 ranks leave 3."""
    changes = {"model.attention.n_heads": 12, "model.attention.n_kv_heads": 6, "training.seq_len": 36}
    config = tiny("llama3", tmp_path, {**changes, "model.feed_forward": FeedForwardConfig(hidden_dim=12)}, tp=9)
    with pytest.raises(ConfigError) as caught:
        plan_run_mesh(config, 9)
    assert caught.value.do.startswith("--parallelism.tensor_parallel_degree 3")


def test_a_model_whose_layers_are_all_dense_has_no_experts_to_spread(tmp_path):
    dense = ["deepseek_v3_debugmodel", "--model.n_layers", "3", "--model.n_dense_layers", "3"]
    config = read_request([*dense, "--parallelism.expert_parallel_degree", "2"], BaseConfig()).config
    with pytest.raises(ConfigError, match="expert_parallel_degree is 2"):
        plan_run_mesh(config, 2)
    with pytest.raises(ConfigError, match="n_dense_layers is 3, all of them") as caught:
        tiny("deepseek_v3", tmp_path, {"model.n_dense_layers": 3})
    assert "--model.n_dense_layers 2" in caught.value.do


def test_what_can_be_padded_is_not_refused(tmp_path):
    config = tiny("deepseek_v3", tmp_path, {"model.vocab_size": 261, "model.dim": 66}, tp=2, ep=2)
    assert plan_run_mesh(config, 8).world_size == 8

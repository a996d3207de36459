"""generate, evaluate: a run's own checkpoints are used in the type, and by the attention kernel, of its training."""

import shutil

import pytest
import torch

from monograph.cli import main
from monograph.commands.open_model import choose_dtype
from monograph.errors import ConfigError
from monograph.generate.load import check_weights, load_model
from monograph.kernels.attention_on_gpu import AUTO, DENSE, choose_kernel
from monograph.train.checkpoint.model_source import open_source
from tests.kit.pretrained import write_pretrained, write_texts

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
TUNE = """
    --dataloader.dataset texts --training.seq_len 32 --training.steps 1 --metrics.progress off --debug.device cpu
    --validator.interval 0 --compile.mode eager --lr_scheduler.warmup_steps 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that computes in bfloat16 and stores float32, on weights of a Hugging Face folder."""
    place = tmp_path_factory.mktemp("dtype")
    write_pretrained(place / "llama")
    write_texts(place / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["train", "--model.from", "llama", *TUNE.split(), "--job.dump_folder", "run"]) == 0
    return place


@pytest.mark.parametrize("where", ["run", "run/checkpoints", "run/checkpoints/step-00000001"])
def test_a_run_is_used_on_a_gpu_in_the_type_that_it_computed_in(folder, where):
    source = open_source(str(folder / where))
    assert load_model(source, CPU, length=16).model.head.norm.weight.dtype == torch.float32, "what it stores"
    assert choose_dtype("auto", source, GPU) == torch.bfloat16 and choose_dtype("auto", source, CPU) is None
    assert choose_dtype("stored", source, GPU) is None and choose_dtype("float32", source, GPU) == torch.float32
    q = torch.zeros(8, 4096, 4, 64, dtype=choose_dtype("auto", source, GPU), device="meta")
    rule = {"causal": True, "window": 0, "kernel": AUTO, "can_use": lambda *_, **__: False}
    assert choose_kernel(q, q, q, None, **rule) != DENSE, "no scores of 17 GB"


def test_a_copied_checkpoint_still_says_what_its_run_computed_in(folder, tmp_path):
    (folder / "run" / "checkpoints" / "step-00000001").rename(tmp_path / "alone")
    assert open_source(str(tmp_path / "alone")).compute_dtype == "bfloat16"
    (tmp_path / "alone").rename(folder / "run" / "checkpoints" / "step-00000001")


def test_weights_of_others_are_used_as_they_are_stored(folder):
    source = open_source(str(folder / "llama"))
    assert source.compute_dtype == "" and choose_dtype("auto", source, GPU) is None


def test_a_kernel_of_gpus_is_left_out_where_it_does_not_run(folder, capsys):
    shutil.copytree(folder / "run", folder / "kernel")
    config = folder / "kernel" / "config.json"
    config.write_text(config.read_text().replace('"kernel": "auto"', '"kernel": "triton"'))
    assert open_source(str(folder / "kernel")).model.attention.kernel == "triton"
    assert (
        main(["generate", str(folder / "kernel"), "--prompt", "the", "--max_new_tokens", "2", "--device", "cpu"]) == 0
    )


def test_weights_beyond_the_memory_are_refused_before_they_are_read(folder):
    with torch.device("meta"):
        model = open_source(str(folder / "llama")).model.build()
    with pytest.raises(ConfigError, match=r"float32, and cuda:0 has 1\.00 KiB") as refused:
        check_weights(model, GPU, torch.float32, room=1024)
    assert "--dtype bfloat16" in refused.value.do

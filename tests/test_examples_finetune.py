"""examples/finetune: from a Hugging Face folder to one, with texts of one's own."""

import json

import torch
import transformers

from monograph.cli import main
from monograph.models.llama3.hf import to_hf_config
from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.records import read_records

RECIPE = "examples.finetune.recipe:finetune"
SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 8}
FLAGS = """
    --model.n_layers 2 --model.dim 64 --model.feed_forward.hidden_dim 96 --dataloader.dataset texts.jsonl
    --training.seq_len 32 --training.local_batch_size 4 --training.steps 8 --validator.interval 0 --metrics.progress off
    --optimizer.lr 0.003 --lr_scheduler.warmup_steps 0 --debug.device cpu
"""


def test_a_model_is_imported_trained_on_and_exported_to_what_transformers_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    given = transformers.AutoConfig.for_model(**(to_hf_config(llama3_debugmodel().model) | SMALL))
    theirs = transformers.AutoModelForCausalLM.from_config(given, dtype=torch.float32)
    theirs.save_pretrained("theirs")
    lines = [json.dumps({"text": f"the answer to question {number} is {number * 7}."}) for number in range(200)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert main(["hf", "import", "theirs", "start"]) == 0
    assert main(["train", RECIPE, *FLAGS.split()]) == 0
    losses = [each["loss"] for each in read_records(tmp_path / "outputs/finetune/metrics.jsonl") if "loss" in each]
    assert losses[-1] < losses[0] - 0.5
    assert main(["hf", "export", "outputs/finetune/checkpoints/step-00000008", "finetuned"]) == 0
    tuned = transformers.AutoModelForCausalLM.from_pretrained("finetuned", dtype=torch.float32)
    assert type(tuned) is type(theirs)
    assert not torch.equal(tuned.get_input_embeddings().weight, theirs.get_input_embeddings().weight)

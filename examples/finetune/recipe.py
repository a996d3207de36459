"""Fine-tuning: train a model on from a Hugging Face folder, on texts of your own, and give it back in the same form.

    monograph hf import HF_FOLDER start
    monograph train examples.finetune.recipe:finetune --dataloader.dataset texts.jsonl
    monograph hf export outputs/finetune/checkpoints/step-00000050 finetuned

The recipe's model must be the one in the folder: `monograph config` prints its fields, and a checkpoint of another
shape is refused by name.
"""

from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.config import TrainerConfig


def finetune() -> TrainerConfig:
    """A short run at a low, constant rate: weights are loaded, optimizer and data start from the beginning."""
    config = llama3_debugmodel()
    config.training.steps = 50
    config.optimizer.lr = 2e-5
    config.lr_scheduler.warmup_steps = 5
    config.lr_scheduler.min_factor = 1.0
    config.checkpoint.load = "start"
    config.checkpoint.load_model_only = True
    config.checkpoint.enabled = True
    config.checkpoint.save_last = True
    config.job.dump_folder = "outputs/finetune"
    return config

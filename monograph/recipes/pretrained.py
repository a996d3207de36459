"""Runs that start from a model in a folder: `--model.from FOLDER`, with a recipe or without one."""

from pathlib import Path

from monograph.config.python_form import make_identifier, render_recipe
from monograph.errors import ConfigError
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.hf_assets import TOKENIZER_NAME
from monograph.train.checkpoint.hf_source import name_model
from monograph.train.checkpoint.model_source import open_source
from monograph.train.config import JobConfig, MetricsConfig, TrainerConfig, TrainingConfig, ValidatorConfig
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from monograph.train.optimizer_config import AdamWConfig

MODEL_FROM = "model.from"
"""The flag that names the folder."""
_USUAL_LENGTH = 1024


def start_from(word: str, recipe: TrainerConfig | None = None, *, needs_tokenizer: bool = True) -> TrainerConfig:
    """A recipe with the model, the tokenizer and the weights of a folder; without one, a short fine-tuning run."""
    source = open_source(word)
    if source.tokenizer is None and needs_tokenizer:
        raise ConfigError(
            f"--{MODEL_FROM} {word}: there is no {TOKENIZER_NAME}",
            why="the model knows texts by the ids of its own tokenizer",
            do="--tokenizer.path FILE with its tokenizer.json, or --tokenizer.path '' for the built-in byte tokenizer",
        )
    config = make_finetuning_run(source.name, source.model) if recipe is None else recipe.replace(model=source.model)
    if source.tokenizer is not None:
        config = config.replace(tokenizer=source.tokenizer)
    return config.replace(checkpoint=config.checkpoint.replace(initial_load_path=str(source.weights)))


def make_finetuning_run(name: str, model: ModelConfig) -> TrainerConfig:
    """100 steps at a low rate, with sequences that the model was made for and a checkpoint to continue from."""
    limit = model.find_sequence_limit()
    return TrainerConfig(
        model=model,
        job=JobConfig(dump_folder=f"outputs/{name}"),
        training=TrainingConfig(
            steps=100, seq_len=min(limit.tokens, _USUAL_LENGTH) if limit else _USUAL_LENGTH, local_batch_size=4
        ),
        optimizer=AdamWConfig(lr=2e-5, weight_decay=0.0),
        lr_scheduler=WarmupDecayConfig(decay="cosine", min_factor=0.1),
        metrics=MetricsConfig(log_interval=10),
        validator=ValidatorConfig(interval=50, steps=8),
        checkpoint=CheckpointConfig(interval=50),
    )


def render_run(word: str, config: TrainerConfig) -> str:
    """The run as a recipe of one's own, to keep and to change."""
    return render_recipe(name_recipe(word), config, doc=f"Train on from the model in {word}.")


def name_recipe(word: str) -> str:
    """The name of that recipe."""
    return make_identifier(name_model(Path(word)))

"""Runs that start from a model in a folder: `--model.from FOLDER`, with a recipe or without one."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from monograph.config.leaves import find_leaves, find_sections, replace_leaf
from monograph.config.origins import find_origins
from monograph.config.python_form import make_identifier, render_recipe
from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.hf_assets import TOKENIZER_NAME
from monograph.train.checkpoint.hf_source import name_model
from monograph.train.checkpoint.model_source import open_source
from monograph.train.config import JobConfig, MetricsConfig, TrainerConfig, TrainingConfig, ValidatorConfig
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from monograph.train.optimizer_config import AdamWConfig
from monograph.train.saved_settings import TRAINED_AS

MODEL_FROM = "model.from"
"""The flag that names the folder."""
FUNCTIONS = ("model.attention.mask_mod", "model.attention.score_mod")
"""What a recipe's model also keeps: weights that were trained without them are refused when they are loaded."""
WHOLE = ("loss", "moe.balance")
"""Sections of a model whose fields belong together: one that a recipe has written is taken with the others."""
_RATE = "moe.router.bias_update_rate"
_USUAL_LENGTH = 1024
log = get_log("recipes")


def start_from(word: str, recipe: TrainerConfig | None = None, *, needs_tokenizer: bool = True) -> TrainerConfig:
    """A recipe with the model, the tokenizer and the weights of a folder; without one, a short fine-tuning run.

    How the recipe trains its model is how the folder's is trained.
    """
    source = open_source(word)
    if source.tokenizer is None and needs_tokenizer:
        raise ConfigError(
            f"--{MODEL_FROM} {word}: there is no {TOKENIZER_NAME}",
            why="the model knows texts by the ids of its own tokenizer",
            do="--tokenizer.path FILE with its tokenizer.json, or --tokenizer.path '' for the built-in byte tokenizer",
        )
    if recipe is None:
        config = make_finetuning_run(source.name, source.model)
    else:
        config = recipe.replace(model=take_settings(source.model, recipe.model, word))
    if source.tokenizer is not None:
        config = config.replace(tokenizer=source.tokenizer)
    return config.replace(checkpoint=config.checkpoint.replace(initial_load_path=str(source.weights)))


def take_settings(model: ModelConfig, recipe: ModelConfig, word: str) -> ModelConfig:
    """The model of a folder, with what the recipe has written about how its own is trained."""
    known, given = find_values(model), find_values(recipe)
    for path in dict.fromkeys(find_written(recipe)):
        if path.startswith("moe.") and model.find_moe() is None:
            continue  # there are no experts to train
        if path not in known:
            raise ConfigError(
                f"the recipe sets model.{path}, and the model of {word} has no such setting",
                why="a recipe says how the model of a folder is trained",
                do=f"leave model.{path} out of the recipe",
            )
        model = replace_leaf(model, path, given[path])
    if _RATE in known and given.get(_RATE, 0.0) != find_values(model)[_RATE]:
        log.info("the selection biases of %s stay as they are; --model.%s %s moves them", word, _RATE, given[_RATE])
    return model


def find_values(model: ModelConfig) -> dict[str, Any]:
    """Every setting and every section by its path."""
    return {leaf.path: leaf.value for leaf in find_leaves(model)} | find_sections(model)


def find_written(recipe: ModelConfig) -> Iterator[str]:
    """The settings that say how a model is trained and differ from their defaults, or the sections that they are in."""
    for path, origin in find_origins(recipe).items():
        whole = next((each for each in WHOLE if f"{path}.".startswith(f"{each}.")), "")
        is_setting = any(fnmatchcase(f"model.{path}", each) for each in (*TRAINED_AS, *FUNCTIONS))
        if origin == "recipe" and (whole or is_setting):
            yield whole or path


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
        validator=ValidatorConfig(interval=50, samples=32),
        checkpoint=CheckpointConfig(interval=50),
    )


def render_run(word: str, config: TrainerConfig) -> str:
    """The run as a recipe of one's own, to keep and to change."""
    return render_recipe(name_recipe(word), config, doc=f"Train on from the model in {word}.")


def name_recipe(word: str) -> str:
    """The name of that recipe."""
    return make_identifier(name_model(Path(word)))

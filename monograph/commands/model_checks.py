"""generate, evaluate, hf import: what can be refused before torch is imported."""

import importlib.util
from pathlib import Path

from monograph.commands.data_flags import flags_without_section
from monograph.commands.model_arguments import EvaluateArguments, GenerateArguments
from monograph.errors import ConfigError
from monograph.machine.gpu_files import check_gpu_files
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.arguments import HfImportArguments
from monograph.train.checkpoint.model_source import open_source
from monograph.train.data.files import open_files

USUAL_LENGTH = 2048


def check_import(arguments: HfImportArguments) -> None:
    """Refuse what is no Hugging Face model, or one of a family that is not known; a model of the hub is downloaded."""
    if not open_source(arguments.source).is_hf:
        raise ConfigError(
            f"{arguments.source} is not a Hugging Face model folder",
            why="it is a checkpoint or the folder of a run",
            do=f"monograph train --model.from {arguments.source} starts from it as it is",
        )


def check_generate(arguments: GenerateArguments) -> None:
    """Refuse a folder without a model, and a file without prompts."""
    arguments.prompts()
    check_gpu_files(arguments.device, name="device")
    open_source(arguments.folder)


def check_evaluate(arguments: EvaluateArguments) -> None:
    """Refuse a folder without a model, tasks without lm-eval, and sets with an unreadable first document."""
    if arguments.tasks and importlib.util.find_spec("lm_eval") is None:
        raise ConfigError(
            f"tasks are {', '.join(arguments.tasks)}",
            why="they are run by lm-eval, which is not installed",
            do="pip install lm-eval",
        )
    check_gpu_files(arguments.device, name="device")
    find_length(arguments, open_source(arguments.folder).model)
    for path in arguments.sets().values():
        with flags_without_section():
            next(iter(open_files(Path(path), text_field=arguments.text_field).read()), None)


def find_length(arguments: EvaluateArguments, model: ModelConfig) -> int:
    """Tokens that are read at once."""
    limit = model.find_sequence_limit()
    if limit is not None and arguments.seq_len > limit.tokens:
        raise ConfigError(
            f"seq_len is {arguments.seq_len} but {limit.field} is {limit.tokens}",
            why="positions beyond it do not exist",
            do=f"--seq_len {limit.tokens}",
        )
    return arguments.seq_len or (min(limit.tokens, USUAL_LENGTH) if limit else USUAL_LENGTH)

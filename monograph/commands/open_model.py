"""What `generate` and `evaluate` begin with: which model, on which device."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import torch

from monograph.commands.model_arguments import ModelArguments
from monograph.errors import ConfigError
from monograph.execute.device import use_device
from monograph.generate.load import LoadedModel, load_model
from monograph.system.foreign_text import show
from monograph.train.checkpoint.model_source import ModelSource, find_tokenizer, open_source
from monograph.train.checkpoint.tensor_file import find_dtype
from monograph.train.data.tokenizer import Tokenizer
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.out_of_memory import memory_explained


def find_source(arguments: ModelArguments) -> ModelSource:
    """The model that the arguments name, with the tokenizer they name."""
    source = open_source(arguments.folder)
    if arguments.tokenizer != "auto":
        source = replace(source, tokenizer=find_tokenizer(Path(arguments.tokenizer)))
    return allow_special(source) if arguments.allow_special else source


def allow_special(source: ModelSource) -> ModelSource:
    """The same model with a tokenizer that reads special tokens from texts."""
    if source.tokenizer is None:  # refused when it is built
        return source
    if not isinstance(source.tokenizer, StandardTokenizerConfig) or not source.tokenizer.path:
        raise ConfigError(
            "--allow_special is given, and no text can write special tokens",
            why=f"the tokenizer of {show(source.weights)} is not a tokenizer.json",
            do="leave --allow_special out",
        )
    return replace(source, tokenizer=source.tokenizer.replace(allow_special=True))


def load(
    arguments: ModelArguments, source: ModelSource, *, length: int, tokenizer: Tokenizer | None = None
) -> LoadedModel:
    """The model in memory for texts of this length, with its tokenizer, unless that was built before."""
    device = use_device(arguments.device)
    dtype = choose_dtype(arguments.dtype, source, device)
    return load_model(source, device, length=length, dtype=dtype, tokenizer=tokenizer)


def choose_dtype(wanted: str, source: ModelSource, device: torch.device) -> torch.dtype | None:
    """The type to compute in; None for that of the weights."""
    if wanted == "auto":
        wanted = source.compute_dtype if device.type == "cuda" and source.compute_dtype else "stored"
    return None if wanted == "stored" else find_dtype(wanted)


def memory_of(loaded: LoadedModel, *, do: str) -> AbstractContextManager[None]:
    """What uses the model inside ends in words where memory runs out."""
    return memory_explained(loaded.device, {"weights": loaded.model.parameters}, do=do)


def suggest_fewer(arguments: ModelArguments) -> str:
    """Flags with which a model needs less memory beside its weights."""
    fewer = f"--batch_size {arguments.batch_size // 2} or " if arguments.batch_size > 1 else ""
    return f"{fewer}--dtype bfloat16, or shorter texts"

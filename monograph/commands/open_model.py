"""What `generate` and `evaluate` begin with: which model, on which device."""

from dataclasses import replace
from pathlib import Path

import torch

from monograph.commands.model_arguments import ModelArguments
from monograph.execute.device import use_device
from monograph.generate.load import LoadedModel, load_model
from monograph.train.checkpoint.model_source import ModelSource, find_tokenizer, open_source
from monograph.train.checkpoint.tensor_file import find_dtype
from monograph.train.data.tokenizer import Tokenizer


def find_source(arguments: ModelArguments) -> ModelSource:
    """The model that the arguments name, with the tokenizer they name."""
    source = open_source(arguments.folder)
    if arguments.tokenizer == "auto":
        return source
    return replace(source, tokenizer=find_tokenizer(Path(arguments.tokenizer)))


def load(
    arguments: ModelArguments, source: ModelSource, *, length: int, tokenizer: Tokenizer | None = None
) -> LoadedModel:
    """The model in memory for texts of this length, with its tokenizer, unless that was built before."""
    dtype: torch.dtype | None = None if arguments.dtype == "stored" else find_dtype(arguments.dtype)
    return load_model(source, use_device(arguments.device), length=length, dtype=dtype, tokenizer=tokenizer)

"""A trained model ready for use on one device: built, filled from its folder, in evaluation mode."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.models.attention_kernel_config import find_served
from monograph.models.init import materialize, reset
from monograph.models.model import Model
from monograph.report.units import format_bytes
from monograph.train.checkpoint.choose import choose
from monograph.train.checkpoint.hf_storage_reader import HfStorageReader
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.manifest import TensorRecord
from monograph.train.checkpoint.model_source import ModelSource
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.reader import SafetensorsReader, load_plan
from monograph.train.checkpoint.store import Store
from monograph.train.checkpoint.tensor_file import find_dtype
from monograph.train.checkpoint.verify import MODEL_PREFIX, LoadRequest, check_request, check_unit_count
from monograph.train.data.tokenizer import Tokenizer

_WANTED_BY = "the model in its config"

log = get_log(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model and the tokenizer it knows texts by."""

    model: Model
    tokenizer: Tokenizer
    path: Path
    """The checkpoint or folder that its weights are from."""
    device: torch.device

    def encode(self, text: str) -> list[int]:
        """The ids of a text as a document begins: with bos where the model was trained so."""
        return encode_prompt(self.tokenizer, text)

    def decode_after(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        """The text of tokens that follow a prompt; decoders drop a space that begins a text, and this one does not."""
        before, whole = self.tokenizer.decode(prompt), self.tokenizer.decode([*prompt, *tokens])
        return whole[len(before) :] if whole.startswith(before) else self.tokenizer.decode(tokens)


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text as a document begins."""
    head = [tokenizer.bos_id] if tokenizer.config.add_bos and tokenizer.bos_id is not None else []
    return [*head, *tokenizer.encode(text).tolist()]


def load_model(
    source: ModelSource,
    device: torch.device,
    *,
    length: int,
    dtype: torch.dtype | None = None,
    tokenizer: Tokenizer | None = None,
) -> LoadedModel:
    """The model of a source, for texts of at most `length` tokens. Weights are used in the type they are stored in
    unless `dtype` is given."""
    tokenizer = tokenizer or build_tokenizer(source)
    path, reader = open_reader(source)
    records = {name: each for name, each in reader.manifest.tensors.items() if name.startswith(MODEL_PREFIX)}
    dtype = dtype or find_main_dtype(records.values())
    check_unit_count(path, reader.manifest, source.model, wanted_by=_WANTED_BY)
    with torch.device("meta"):
        served = find_served(source.model, device=device.type, dtype=dtype_name(dtype))
        model: Model = served.for_length(length).build()
    requests = {name: LoadRequest(tensor.dtype, tuple(tensor.shape)) for name, tensor in find_tensors(model).items()}
    check_request(path, reader.manifest, requests, model_only=True, wanted_by=_WANTED_BY)
    check_weights(model, device, dtype)
    materialize(model, device=device, dtype=dtype)
    reset(model)
    load_plan(find_tensors(model), reader, Ranks())
    log.info("loaded %s", path)
    return LoadedModel(model.eval().requires_grad_(False), tokenizer, path, device)


def check_weights(model: Model, device: torch.device, dtype: torch.dtype, *, room: int = 0) -> None:
    """Refuse weights that are more than the device's memory, or than `room` bytes; it also holds activations."""
    if device.type == "cuda":
        room = room or torch.cuda.mem_get_info(device)[1]
    needed = sum(each.numel() for each in model.parameters()) * dtype.itemsize
    if room and needed > room:
        narrow = "--dtype bfloat16, or " if dtype.itemsize > 2 else ""
        raise ConfigError(
            f"the weights are {format_bytes(needed)} in {dtype_name(dtype)}, and {device} has {format_bytes(room)}",
            why="a model is used on one device as a whole",
            do=f"{narrow}monograph hf export, for a server that spreads it over several",
        )


def dtype_name(dtype: torch.dtype) -> str:
    """`bfloat16`, without torch's name before it."""
    return str(dtype).removeprefix("torch.")


def build_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of a source, if it is one that the model can know."""
    if source.tokenizer is None:
        raise ConfigError(
            f"{source.weights} has no tokenizer",
            why="text cannot be turned into what the model reads",
            do="--tokenizer FOLDER with a tokenizer.json",
        )
    tokenizer: Tokenizer = source.tokenizer.build()
    vocab_size = source.model.find_vocab_size()
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids, and the model {vocab_size}",
            why=f"{tokenizer.description} does not belong to {source.weights}",
            do="--tokenizer FOLDER with the model's own",
        )
    return tokenizer


def open_reader(source: ModelSource) -> tuple[Path, SafetensorsReader]:
    """The weights of a source, checked: a Hugging Face folder's, or those of its newest good checkpoint."""
    if source.is_hf:
        return source.weights, HfStorageReader(HfWeights(source.weights))
    chosen = choose(Store(source.weights), source.weights, Ranks())
    return chosen.path, SafetensorsReader(chosen.path, chosen.manifest, chosen.files)


def find_main_dtype(records: Iterable[TensorRecord]) -> torch.dtype:
    """The type of most of the weights."""
    sizes: dict[torch.dtype, int] = {}
    for record in records:
        dtype = find_dtype(record.dtype)
        if dtype.is_floating_point:
            sizes[dtype] = sizes.get(dtype, 0) + torch.Size(record.shape).numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def find_tensors(model: Model) -> dict[str, Tensor]:
    """The tensors of a model as checkpoints name them, each once."""
    tied = find_tied(model)
    return {MODEL_PREFIX + name: value for name, value in model.state_dict().items() if name not in tied}


def find_tied(model: Model) -> set[str]:
    """Further names of parameters that come earlier under another one."""
    first = {name for name, _ in model.named_parameters()}
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - first

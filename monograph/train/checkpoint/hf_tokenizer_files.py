"""The files beside the weights of an export, so that transformers encodes and ends texts as the run did. No torch.

They are those of the run's tokenizer as they were given; what the run decided otherwise (whether a text begins with
bos, which token ends it) is written into them. The byte tokenizer gets a tokenizer.json of its own.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as TokenizerFile
from tokenizers import decoders, models, pre_tokenizers

from monograph.errors import ConfigError
from monograph.system.foreign_json import parse_json
from monograph.train.checkpoint.hf_assets import (
    GENERATION_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
)
from monograph.train.checkpoint.model_source import find_tokenizer_assets, starts_with_special
from monograph.train.data.special_tokens import read_content
from monograph.train.data.tokenizer import ByteCodec, Tokenizer
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig

BYTE_NAMES = {256: "<bos>", 257: "<eos>", 258: "<pad>"}
"""The tokens of the byte tokenizer that are no bytes."""


@dataclass(frozen=True)
class TokenizerFiles:
    """Files by name, and the tokens that begin and end a text."""

    files: dict[str, bytes]
    bos_id: int | None
    eos_id: int


def make_tokenizer_files(config: TokenizerConfig, *, max_length: int | None) -> TokenizerFiles:
    """What an export needs of a tokenizer; `max_length` is the longest sequence of the model."""
    if not isinstance(config, StandardTokenizerConfig):
        raise ConfigError(
            f"the tokenizer of the run is {type(config).__qualname__}, which has no tokenizer.json",
            why="transformers reads a tokenizer from that file",
            do="--tokenizer FOLDER with a tokenizer.json, or --tokenizer none to export the weights alone",
        )
    tokenizer: Tokenizer = config.build()
    if config.path:
        path = Path(config.path)
        path = path / TOKENIZER_NAME if path.is_dir() else path
        files = find_tokenizer_assets(config)
        if starts_with_special(path) != config.add_bos:
            files[TOKENIZER_NAME] = frame_texts(files[TOKENIZER_NAME], tokenizer.bos_id if config.add_bos else None)
    else:
        files = {TOKENIZER_NAME: make_byte_tokenizer(add_bos=config.add_bos)}
    names = name_ids(files[TOKENIZER_NAME])
    files[TOKENIZER_CONFIG_NAME] = complete_config(files.get(TOKENIZER_CONFIG_NAME), tokenizer, names, max_length)
    files[GENERATION_NAME] = complete_generation(files.get(GENERATION_NAME), tokenizer)
    return TokenizerFiles(files, tokenizer.bos_id, tokenizer.eos_id)


def make_byte_tokenizer(*, add_bos: bool) -> bytes:
    """The byte tokenizer as a tokenizer.json: byte b is token b, with bos, eos and padding after them."""
    letters = {token: letter for letter, token in byte_letters().items()}
    vocab = {letters[byte]: byte for byte in range(256)} | {name: token for token, name in BYTE_NAMES.items()}
    tokenizer = TokenizerFile(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(BYTE_NAMES.values()))
    data = tokenizer.to_str().encode()
    return frame_texts(data, ByteCodec.bos_id) if add_bos else data


def byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes as: printable ones as they are, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def frame_texts(data: bytes, bos_id: int | None) -> bytes:
    """A tokenizer.json whose texts begin with bos, or with nothing but themselves."""
    content = parse_json(data, TOKENIZER_NAME, kind=dict)
    content["post_processor"] = None
    if bos_id is not None:
        name = name_ids(data)[bos_id]
        special = {"SpecialToken": {"id": name, "type_id": 0}}
        first, second = ({"Sequence": {"id": letter, "type_id": number}} for number, letter in enumerate("AB"))
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [special, first],
            "pair": [special, first, second],
            "special_tokens": {name: {"id": name, "ids": [bos_id], "tokens": [name]}},
        }
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode()


def name_ids(data: bytes) -> dict[int, str]:
    """The tokens of a tokenizer.json by id."""
    return {token: name for name, token in TokenizerFile.from_buffer(data).get_vocab(with_added_tokens=True).items()}


def complete_config(data: bytes | None, tokenizer: Tokenizer, names: dict[int, str], max_length: int | None) -> bytes:
    """A tokenizer_config.json that names the run's bos and eos; one that is there keeps everything else."""
    content: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if max_length:
        content["model_max_length"] = max_length
    if data is not None:
        content = parse_json(data, TOKENIZER_CONFIG_NAME, kind=dict)
    for role, token in (("bos_token", tokenizer.bos_id), ("eos_token", tokenizer.eos_id)):
        if token is not None and read_content(content.get(role)) != names[token]:
            content[role] = names[token]
    return dump(content)


def complete_generation(data: bytes | None, tokenizer: Tokenizer) -> bytes:
    """A generation_config.json whose texts end where the run's do; one that is there keeps its other settings."""
    content: dict[str, Any] = parse_json(data, GENERATION_NAME, kind=dict) if data is not None else {}
    content.setdefault("bos_token_id", tokenizer.bos_id)
    ends = content.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    ends = ends if tokenizer.eos_id in ends else [*ends, tokenizer.eos_id]
    content["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if content.get("pad_token_id") is None:
        content["pad_token_id"] = tokenizer.eos_id
    return dump({key: value for key, value in content.items() if value is not None})


def dump(content: dict[str, Any]) -> bytes:
    """JSON as people read it."""
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()

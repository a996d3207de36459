"""Small tokenizers built as the published ones are: the same normalizers, splits and kinds of models."""

import functools
import inspect
import textwrap
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GPT4_SPLIT = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
QWEN_SPLIT = GPT4_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
O200K_SPLIT = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK_SPLIT = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
"""Of every tokenizer here."""
OTHER = ["<think>", "   "]
"""Added to some without being special: markup, and a run of spaces as code models have them."""


def _bytes_after(*splits: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _split(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _spaces_as_text() -> normalizers.Normalizer:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


_BYTE_PAIRS = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
_KINDS = {
    # name: model, normalizer, splits
    "gpt2": (models.BPE, None, lambda: pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama3": (lambda: models.BPE(ignore_merges=True), None, lambda: _bytes_after(_split(GPT4_SPLIT))),
    "qwen": (models.BPE, normalizers.NFC, lambda: _bytes_after(_split(QWEN_SPLIT))),
    "o200k": (models.BPE, None, lambda: _bytes_after(_split(O200K_SPLIT))),
    "deepseek": (
        models.BPE,
        None,
        lambda: _bytes_after(
            _split(r"\p{N}{1,3}"), _split("[一-龥\u3040-\u309f\u30a0-\u30ff]+"), _split(DEEPSEEK_SPLIT)
        ),
    ),
    "starcoder": (
        models.BPE,
        None,
        lambda: pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "llama2": (lambda: models.BPE(**_BYTE_PAIRS), _spaces_as_text, lambda: None),
    "mistral": (
        lambda: models.BPE(**_BYTE_PAIRS),
        None,
        lambda: pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
    ),
    "gemma": (
        lambda: models.BPE(**_BYTE_PAIRS),
        lambda: normalizers.Replace(" ", "▁"),
        lambda: pre_tokenizers.Split(" ", "merged_with_previous"),
    ),
    "t5": (models.Unigram, normalizers.NFKC, pre_tokenizers.Metaspace),
    "bert": (
        lambda: models.WordPiece(unk_token="<unk>"),
        lambda: normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer,
    ),
    "words": (lambda: models.WordLevel(unk_token="<unk>"), None, pre_tokenizers.WhitespaceSplit),
}
KINDS = tuple(_KINDS)
_TRAINERS = {
    models.BPE: trainers.BpeTrainer,
    models.Unigram: trainers.UnigramTrainer,
    models.WordPiece: trainers.WordPieceTrainer,
    models.WordLevel: trainers.WordLevelTrainer,
}


@functools.cache
def make_json(kind: str, *, adds_other: bool = False) -> str:
    """A tokenizer.json, trained on a module of the standard library."""
    make_model, make_normalizer, make_splits = _KINDS[kind]
    model = make_model()
    tokenizer = Tokenizer(model)
    if make_normalizer is not None:
        tokenizer.normalizer = make_normalizer()
    splits = make_splits()
    if splits is not None:
        tokenizer.pre_tokenizer = splits
    words = {"unk_token": "<unk>"} if isinstance(model, models.Unigram) else {}
    if isinstance(model, models.BPE):
        words["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    trainer = _TRAINERS[type(model)](vocab_size=900, special_tokens=SPECIAL, show_progress=False, **words)
    texts = [inspect.getsource(module) for module in (textwrap, functools)]
    tokenizer.train_from_iterator(texts, trainer)
    if adds_other:
        tokenizer.add_tokens([AddedToken(name, normalized=False) for name in OTHER])
    has_bytes = "ByteLevel" in str(splits)
    tokenizer.decoder = decoders.ByteLevel() if has_bytes else decoders.Metaspace()
    return tokenizer.to_str()


def write_kind(folder: Path, kind: str, *, adds_other: bool = False) -> Path:
    """A folder with such a tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(make_json(kind, adds_other=adds_other), encoding="utf-8")
    return folder

"""Texts write no special tokens unless a run allows it, with any kind of tokenizer, as transformers splits them."""

import json

import pytest
import tokenizers
import transformers
from tokenizers import models, pre_tokenizers

from monograph.errors import DataError
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.open_shards import open_shards
from monograph.train.data.pack import pack
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.saved_settings import find_data_flags
from tests.kit.data import write_texts
from tests.kit.runs import tiny_run
from tests.kit.tokenizer_files import KINDS, SPECIAL, write_kind

TEXTS = (
    "a<|im_start|>b",
    "x <|im_start|>user\nhello<|im_end|> </s>\n<s>",
    "</s>",
    " </s> <s><s> [/s]",
    "<unk> \U0010ffff é <think> q    w",
    "the end</s",
)
WHOLE_WORDS = ("t5", "words")
"""Their vocabulary holds special tokens as words, which transformers finds in texts all the same."""


@pytest.fixture(scope="module", params=KINDS)
def kind(request, tmp_path_factory):
    return request.param, write_kind(tmp_path_factory.mktemp(request.param), request.param, adds_other=True)


def encode_theirs(folder, text, *, split):
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    return theirs(text, add_special_tokens=False, split_special_tokens=split)["input_ids"]


def test_texts_are_encoded_as_transformers_splits_special_tokens(kind):
    name, folder = kind
    ours = StandardTokenizerConfig(path=str(folder)).build()
    for text in TEXTS:
        ids = ours.encode(text).tolist()
        assert name in WHOLE_WORDS or ids == encode_theirs(folder, text, split=True)
        assert not {1, 2, 3, 4} & {*ids}, f"{text!r} has written {SPECIAL}"


def test_allowed_special_tokens_are_read_from_texts_as_by_transformers(kind):
    _, folder = kind
    ours = StandardTokenizerConfig(path=str(folder), allow_special=True).build()
    for text in TEXTS:
        assert ours.encode(text).tolist() == encode_theirs(folder, text, split=False)
    assert {2, 3} < {*ours.encode("".join(SPECIAL)).tolist()}


def test_ordinary_texts_are_encoded_alike_with_and_without_special_tokens(kind):
    _, folder = kind
    plain, allowed = (StandardTokenizerConfig(path=str(folder), allow_special=each).build() for each in (False, True))
    for text in ("Hello,  world! <b>1</b>\n\n\tend 2024 ", "</s", "s> </ s>", "éa</i>"):
        assert plain.encode(text).tolist() == allowed.encode(text).tolist()


def write_words(folder, words, **config):
    """A tokenizer of whole words that marks none of them as special."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({word: token for token, word in enumerate(words)}, words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return StandardTokenizerConfig(path=str(folder))


@pytest.mark.parametrize(
    "declared",
    [
        {"eos_token": "[END]", "sep_token": "[SEP]"},
        {"eos_token": "[END]", "additional_special_tokens": [{"content": "[SEP]"}]},
        {"eos_token": "[END]", "added_tokens_decoder": {"2": {"content": "[SEP]", "special": True}}},
    ],
)
def test_special_tokens_of_tokenizer_config_json_are_plain_text_too(tmp_path, declared):
    tokenizer = write_words(tmp_path, ["?", "[END]", "[SEP]", "word"], **declared).build()
    assert not {1, 2} & {*tokenizer.encode("word [END] word [SEP]").tolist()}
    assert tokenizer.encode("word").tolist() == [3]


def test_a_text_that_can_only_be_a_special_token_is_refused(tmp_path):
    config = write_words(tmp_path, ["?", "|", "word"], eos_token="|")
    with pytest.raises(DataError, match=r"special token '\|'") as error:
        config.build().encode_documents(["word", "word | word"])
    assert "'word | word'" in error.value.what and "--tokenizer.allow_special true" in error.value.do
    assert config.replace(allow_special=True).build().encode("word | word").tolist() == [2, 1, 2]


def test_packed_shards_and_streams_tell_whether_texts_wrote_special_tokens(tmp_path):
    config = StandardTokenizerConfig(path=str(write_kind(tmp_path / "kind", "qwen")), allow_special=True)
    texts = write_texts(tmp_path / "texts.jsonl", ["a text </s>"])
    flags = pack(DataLoaderConfig(dataset=str(texts)), config, tmp_path / "packed").flags
    assert flags[-2:] == ("--tokenizer.allow_special", "True")
    assert open_shards(tmp_path / "packed", config.build()).read(0, 0, 99).tolist().count(2) == 2
    with pytest.raises(DataError, match="special tokens read from texts") as error:
        open_shards(tmp_path / "packed", config.replace(allow_special=False).build())
    assert "allow_special" in error.value.do


def test_a_run_of_a_version_that_read_special_tokens_from_texts_is_told_the_flag(tmp_path):
    path = str(write_kind(tmp_path, "qwen"))
    config = tiny_run(tmp_path / "run").replace(tokenizer=StandardTokenizerConfig(path=path))
    saved = {"tokenizer": {"path": path, "add_bos": False}}
    assert find_data_flags({"settings": saved}, config) == ["--tokenizer.allow_special true"]
    saved["tokenizer"]["allow_special"] = False
    assert find_data_flags({"settings": saved}, config) == []

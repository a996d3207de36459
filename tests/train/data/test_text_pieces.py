"""Long texts are encoded in pieces that have the tokens of the whole, or refused."""

import json
import random

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers

from monograph.errors import DataError
from monograph.train.data import text_pieces, tokenizer_json
from monograph.train.data.split_pattern import Cut, judge
from monograph.train.data.text_pieces import find_pieces
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from tests.kit.tokenizer_files import DEEPSEEK_SPLIT, GPT4_SPLIT, KINDS, O200K_SPLIT, QWEN_SPLIT, make_json

PARTS = (
    *(
        "a b",
        "ab cd",
        " the cat",
        "don't stop",
        "It'S ok",
        "x  y",
        "x\n\ny z",
        "a\tb c",
        " \r\n q r",
        "1234 a b",
        "-- a b",
    ),
    *(
        "été à la",
        "é b",
        "я и ты",
        "λ μ",
        "日本 語 a b",
        "a　b",
        "</s> a",
        "a <s> b",
        "<think> so",
        "▁a b",
        "a\u0301 b\u0301",
    ),
    *("A B", "STOP it NOW", "...  ", "\U0001f642 a", "a ", " ", "\n", "a b   c", "\0 a b", "ﬁ ne", "\u017f s"),
)


def build(kind):
    return tokenizers.Tokenizer.from_str(make_json(kind, adds_other=True))


def encode(tokenizer, texts):
    return [token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids]


def cut(monkeypatch, tokenizer, text, size=1):
    monkeypatch.setattr(text_pieces, "PIECE_CHARACTERS", size)
    return list(find_pieces(tokenizer).cut(text))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.long if kind == "o200k" else ()) for kind in KINDS]
)
def test_pieces_have_the_tokens_of_the_whole(monkeypatch, kind):
    tokenizer, draw, cuts = build(kind), random.Random(7), 0
    for _ in range(300):
        text = draw.choice(("", " ")).join(draw.choices(PARTS, k=draw.randrange(1, 12)))
        pieces = cut(monkeypatch, tokenizer, text, draw.choice((1, 1, 5, 20)))
        cuts += len(pieces) - 1
        assert encode(tokenizer, pieces) == encode(tokenizer, [text]), repr(text)
    assert cuts > 200, "most texts are cut"


@settings(max_examples=200)
@given(st.text(st.sampled_from("ab ys'\n\t.1é▁<>/日\u0301"), max_size=40))
@pytest.mark.parametrize(
    "kind", ["gpt2", pytest.param("o200k", marks=pytest.mark.long), "llama2", "mistral", "t5", "bert"]
)
def test_pieces_of_any_text_have_the_tokens_of_the_whole(kind, text):
    with pytest.MonkeyPatch.context() as patch:
        tokenizer = tokenizers.Tokenizer.from_str(make_json(kind))
        assert encode(tokenizer, cut(patch, tokenizer, text)) == encode(tokenizer, [text])


@pytest.mark.parametrize(
    "pattern", [GPT4_SPLIT, QWEN_SPLIT, O200K_SPLIT, DEEPSEEK_SPLIT, r"\w+|[^\w\s]+|\s+", " ?[a-z]+| "]
)
def test_patterns_of_published_tokenizers_divide_words(pattern):
    assert judge(pattern, " ") is Cut.DIVIDES


@pytest.mark.parametrize("pattern", [r"\p{N}{1,3}", "[一-龥]+", r"\d", r"'s", r"[^\p{L} ]+", r"\s+(?!\S)", "--"])
def test_patterns_that_look_at_one_side_keep_words_together(pattern):
    assert judge(pattern, " ") is Cut.KEEPS


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\w+ \w+", r"[^\n]+", ".*", r"(?<= )\w+| ", r"\w+\b| ", r"^\w+| ", r"\w+(?= )| ", r"\w+(?!\S\S)| ", "a b| "),
        *(
            r"\w+\s?",
            "[[:alpha:]]+| ",
            r"[\w&&[^a]]+| ",
            r"(\w+)+| ",
            r"(?:\w| )+",
            r"\w+\K | ",
            r"\G\w+| ",
            "",
            "(",
            "a|",
            "z*",
        ),
        *(r"\s{2}?|\d", r" {2,0}|\d"),
        *(r"(?i)a| ", r"(?>\w+) ", r"\w+$| ", r"(?:\w+\s)?x| ", r"\p{L}*\s*", r"\w+(?!\S)x| ", r"\R| ", r"\X"),
    ],
)
def test_patterns_that_may_look_across_a_cut_are_not_used(pattern):
    assert judge(pattern, " ") is None


CHANGES = {
    "strips": lambda made: setattr(made, "normalizer", normalizers.Strip()),
    "replaces letters": lambda made: setattr(made, "normalizer", normalizers.Replace("b a", "c")),
    "replaces by pattern": lambda made: setattr(made, "normalizer", normalizers.Replace(Regex("a +"), "c")),
    "has no words": lambda made: setattr(made, "pre_tokenizer", None),
    "has words of a length": lambda made: setattr(made, "pre_tokenizer", pre_tokenizers.FixedLength(3)),
    "merges with the word before": lambda made: setattr(
        made, "pre_tokenizer", pre_tokenizers.Split(" ", "merged_with_previous")
    ),
    "puts a sign before a text": lambda made: setattr(
        made,
        "pre_tokenizer",
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="first")]),
    ),
    "turns spaces into bytes first": lambda made: setattr(
        made,
        "pre_tokenizer",
        pre_tokenizers.Sequence(
            [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), pre_tokenizers.WhitespaceSplit()]
        ),
    ),
    "adds a phrase": lambda made: made.add_tokens(["one day"]),
    "adds a phrase with another kind of space": lambda made: (
        setattr(made, "normalizer", normalizers.NFKC()),
        made.add_tokens([AddedToken("one\u00a0day", normalized=True)]),
    ),
    "adds a token that takes spaces": lambda made: made.add_tokens([AddedToken("so", rstrip=True)]),
    "adds a word that begins with a space": lambda made: made.add_tokens([AddedToken(" so", single_word=True)]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tokenizers_that_may_look_across_a_cut_have_no_pieces(change):
    tokenizer = tokenizers.Tokenizer.from_str(make_json("gpt2"))
    assert find_pieces(tokenizer) is not None
    CHANGES[change](tokenizer)
    assert find_pieces(tokenizer) is None


@pytest.mark.parametrize("content", [" ", "▁", " so", "▁so"])
def test_spaces_that_are_tokens_of_their_own_are_not_left_out(content):
    tokenizer = tokenizers.Tokenizer.from_str(make_json("llama2"))
    assert find_pieces(tokenizer) is not None
    tokenizer.add_tokens([AddedToken(content, normalized=False)])
    assert find_pieces(tokenizer) is None


def test_letters_that_the_vocabulary_joins_with_a_space_are_no_place_to_cut():
    vocab = {letter: number for number, letter in enumerate([*"abc▁", "a▁", "▁b"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("a", "▁"), ("▁", "b")]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    pieces = find_pieces(tokenizer)
    assert pieces.border.search("a b") is None and pieces.border.search("b a") is not None


def write(folder, kind="gpt2"):
    (folder / "tokenizer.json").write_text(make_json(kind))
    return StandardTokenizerConfig(path=str(folder)).build()


def make_text(size):
    draw = random.Random(3)
    return "".join(draw.choices(PARTS, k=size))


def test_long_documents_are_encoded_in_pieces(tmp_path, monkeypatch):
    tokenizer, texts = write(tmp_path), ["short", make_text(3000), "", make_text(200)]
    whole = tokenizer.encode_documents(texts)
    monkeypatch.setattr(tokenizer_json, "LONG_CHARACTERS", 1000)
    monkeypatch.setattr(text_pieces, "PIECE_CHARACTERS", 100)
    monkeypatch.setattr(tokenizer_json, "MAX_WHOLE_CHARACTERS", 2000)
    sizes, encode_group = [], tokenizer_json.HuggingFaceCodec._encode_group

    def measure(codec, group):
        sizes.append(sum(map(len, group)))
        return encode_group(codec, group)

    monkeypatch.setattr(tokenizer_json.HuggingFaceCodec, "_encode_group", measure)
    assert all(map(np.array_equal, whole, tokenizer.encode_documents(texts)))
    assert len(sizes) > 10 and max(sizes) < 2000


def test_words_that_a_run_of_spaces_alone_divides_are_not_cut_between():
    vocab = {piece: number for number, piece in enumerate(["a", "b", " ", "a ", "a b"])}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab, [("a", " "), ("a ", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s{2,}|\d"), "isolated")
    assert encode(tokenizer, ["a b"]) == [4]
    assert find_pieces(tokenizer) is None


def test_long_pieces_are_encoded_one_at_a_time(tmp_path, monkeypatch):
    sizes = []

    def measure(codec, group):
        sizes.append(sum(map(len, group)))
        return [np.zeros(1, np.uint32) for _ in group]

    tokenizer = write(tmp_path)
    monkeypatch.setattr(tokenizer_json.HuggingFaceCodec, "_encode_group", measure)
    tokenizer.encode(" ".join(["a" * 3_000_000] * 3 + ["a" * 10]))
    assert sizes == [3_000_000, 3_000_001, 3_000_012]


@pytest.mark.parametrize("text", ["日" * 3000, "a" * 3000])
def test_a_long_text_without_a_place_to_cut_is_refused_with_the_separator(tmp_path, monkeypatch, text):
    tokenizer = write(tmp_path)
    monkeypatch.setattr(tokenizer_json, "LONG_CHARACTERS", 1000)
    assert len(tokenizer.encode(text)) > 1, "as far as the memory allows, it is encoded in one go"
    monkeypatch.setattr(tokenizer_json, "MAX_WHOLE_CHARACTERS", 2000)
    with pytest.raises(DataError, match="3,000 characters is too long") as error:
        tokenizer.encode(text)
    assert "document_separator" in error.value.do


def test_published_forms_with_inverted_splits_are_known():
    content = json.loads(make_json("llama3"))
    content["pre_tokenizer"]["pretokenizers"][0] |= {"behavior": "Removed", "invert": True}
    assert find_pieces(tokenizers.Tokenizer.from_str(json.dumps(content))) is not None

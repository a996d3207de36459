import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from monograph.errors import DataError
from monograph.train.data.tokenizer_config import StandardTokenizerConfig

SPECIALS = ["<s>", "</s>", "<other>"]


def write_tokenizer(folder, *, specials=tuple(SPECIALS), truncate_to=None):
    """A byte-level BPE without merges: every byte is a token, so any text can be written."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    built = tokenizers.Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(list(specials))
    if "<s>" in specials:
        built.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", built.token_to_id("<s>"))])
    if truncate_to:
        built.enable_truncation(truncate_to)
        built.enable_padding(length=truncate_to)
    folder.mkdir(exist_ok=True)
    path = folder / "tokenizer.json"
    built.save(str(path))
    return path


@pytest.fixture(scope="module")
def byte_tokenizer():
    return StandardTokenizerConfig().build()


@pytest.fixture(scope="module")
def hf_tokenizer(tmp_path_factory):
    return StandardTokenizerConfig(path=str(write_tokenizer(tmp_path_factory.mktemp("hf")))).build()


@given(st.text())
def test_bytes_give_any_text_back(byte_tokenizer, text):
    assert byte_tokenizer.decode(byte_tokenizer.encode(text)) == text


@given(st.text())
def test_a_hugging_face_tokenizer_gives_any_text_back(hf_tokenizer, text):
    assert hf_tokenizer.decode(hf_tokenizer.encode(text)) == text


def test_bytes_are_their_own_ids_and_specials_follow(byte_tokenizer):
    assert byte_tokenizer.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert (byte_tokenizer.bos_id, byte_tokenizer.eos_id, byte_tokenizer.vocab_size) == (256, 257, 259)


def test_tokens_are_kept_in_two_bytes_where_they_fit(byte_tokenizer):
    assert byte_tokenizer.encode("x").dtype == np.uint16
    assert byte_tokenizer.encode_documents(["x"])[0].dtype == np.uint16


def test_a_document_ends_with_eos_and_starts_with_bos_only_when_asked(byte_tokenizer):
    assert byte_tokenizer.encode_documents(["ab", ""])[0].tolist() == [97, 98, 257]
    assert StandardTokenizerConfig(add_bos=True).build().encode_documents(["ab"])[0].tolist() == [256, 97, 98, 257]


def test_special_tokens_say_nothing_and_broken_bytes_do_not_raise(byte_tokenizer):
    assert byte_tokenizer.decode([256, 104, 105, 257, 258]) == "hi"
    assert byte_tokenizer.decode([0xC3]) == "\ufffd"


def test_encoding_adds_no_special_tokens_of_its_own(hf_tokenizer):
    assert hf_tokenizer.bos_id not in hf_tokenizer.encode("hello").tolist()
    (document,) = hf_tokenizer.encode_documents(["hello"])
    assert document.tolist() == [*hf_tokenizer.encode("hello").tolist(), hf_tokenizer.eos_id]


def test_special_tokens_are_found_by_their_usual_names(hf_tokenizer):
    assert (hf_tokenizer.bos_id, hf_tokenizer.eos_id, hf_tokenizer.vocab_size) == (256, 257, 259)


def test_a_folder_with_a_tokenizer_is_enough(tmp_path):
    write_tokenizer(tmp_path)
    assert StandardTokenizerConfig(path=str(tmp_path)).build().eos_id == 257


@pytest.mark.parametrize("written", ["<other>", {"content": "<other>", "lstrip": False}])
def test_tokenizer_config_json_decides_before_usual_names(tmp_path, written):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": written}))
    assert StandardTokenizerConfig(path=str(tmp_path)).build().eos_id == 258


def test_the_user_decides_before_tokenizer_config_json(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "bos_token": None}))
    assert StandardTokenizerConfig(path=str(tmp_path), eos_token="<other>").build().eos_id == 258


def test_limits_stored_in_the_file_do_not_cut_or_pad_documents(tmp_path):
    tokenizer = StandardTokenizerConfig(path=str(write_tokenizer(tmp_path, truncate_to=4))).build()
    assert len(tokenizer.encode("a" * 100)) == 100 and len(tokenizer.encode("a")) == 1


def test_code_beside_a_tokenizer_is_never_run(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenization_mine.py").write_text("raise SystemExit('this code was run')")
    mapping = {"auto_map": {"AutoTokenizer": ["tokenization_mine.Mine", None]}, "tokenizer_class": "Mine"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(mapping))
    assert StandardTokenizerConfig(path=str(tmp_path)).build().decode([257]) == ""


def test_the_fingerprint_tells_tokenizers_and_frames_apart(tmp_path):
    one = str(write_tokenizer(tmp_path / "one"))
    two = str(write_tokenizer(tmp_path / "two", specials=("</s>", "<s>")))
    configs = [
        StandardTokenizerConfig(),
        StandardTokenizerConfig(add_bos=True),
        StandardTokenizerConfig(path=one),
        StandardTokenizerConfig(path=two),
        StandardTokenizerConfig(path=one, add_bos=True),
        StandardTokenizerConfig(path=one, eos_token="<other>"),
    ]
    assert len({config.build().fingerprint for config in configs}) == len(configs)
    assert (
        StandardTokenizerConfig(path=one).build().fingerprint
        == StandardTokenizerConfig(path=str(tmp_path / "one")).build().fingerprint
    )


@pytest.mark.parametrize(
    ("content", "match"),
    [(None, "cannot read the tokenizer"), ("{}", "not a tokenizer.json"), ("x", "not a tokenizer.json")],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content, match):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(DataError, match=match) as error:
        StandardTokenizerConfig(path=str(path)).build()
    assert str(path) in error.value.what


def test_a_special_token_that_does_not_exist_is_refused_with_the_nearest(tmp_path):
    write_tokenizer(tmp_path)
    with pytest.raises(DataError, match="<othr>") as error:
        StandardTokenizerConfig(path=str(tmp_path), eos_token="<othr>").build()
    assert "<other>" in error.value.do


def test_a_tokenizer_that_cannot_end_documents_is_refused(tmp_path):
    path = str(write_tokenizer(tmp_path, specials=("<other>",)))
    with pytest.raises(DataError, match="ends a document") as error:
        StandardTokenizerConfig(path=path).build()
    assert "--tokenizer.eos_token" in error.value.do
    with pytest.raises(DataError, match="no bos token"):
        StandardTokenizerConfig(path=path, eos_token="<other>", add_bos=True).build()


def test_a_damaged_tokenizer_config_is_refused(tmp_path):
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match="tokenizer_config"):
        StandardTokenizerConfig(path=str(tmp_path)).build()

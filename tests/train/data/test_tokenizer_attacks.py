"""tokenizer.json files that make the library of others fail: refused in words that name the file, or harmless."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from monograph.errors import DataError
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.data.tokenizer_faults import library_errors
from tests.kit.tokenizer_files import make_json

PANICS = {
    "an empty pattern": {"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x"}},
    "pieces of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "no normalizer": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
    "a broken normalizer": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}},
}
SLOW_SPLIT = {"type": "Split", "pattern": {"Regex": r"(b+)+$"}, "behavior": "Isolated", "invert": False}


def write(folder, **changes):
    """A tokenizer with some parts changed."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(make_json("qwen")) | changes))
    return StandardTokenizerConfig(path=str(folder))


@pytest.mark.parametrize("name", PANICS)
def test_files_that_make_the_library_panic_are_named(tmp_path, capfd, name):
    with pytest.raises(DataError, match=r"'[^']*tokenizer\.json' (is not|cannot)") as error:
        write(tmp_path, **PANICS[name]).build()
    assert "the tokenizers library failed" in error.value.why
    assert capfd.readouterr().err == "", "the traceback of the library is not shown"


def test_a_text_that_makes_the_library_panic_is_named(tmp_path):
    tokenizer = write(tmp_path, pre_tokenizer=SLOW_SPLIT).build()
    with pytest.raises(DataError, match=r"tokenizer\.json' cannot encode the text 'bbb") as error:
        tokenizer.encode_documents(["fine", "b" * 40 + " c"])
    assert "retry-limit" in error.value.why


def test_a_text_without_tokens_is_named(tmp_path):
    model = {"type": "WordLevel", "vocab": {"word": 0, "</s>": 1}, "unk_token": "<unk>"}
    tokenizer = write(tmp_path, model=model, added_tokens=[], normalizer=None, pre_tokenizer=None).build()
    assert tokenizer.encode("word").tolist() == [0]
    with pytest.raises(DataError, match=r"tokenizer\.json' cannot encode the text 'other'"):
        tokenizer.encode_documents(["word", "other"])


def test_an_id_that_no_model_has_is_refused_before_memory_is_taken_for_it(tmp_path):
    model = json.loads(make_json("qwen"))["model"]
    model["vocab"]["zzz"] = 4294967295
    with pytest.raises(DataError, match="has the token id 4294967295"):
        write(tmp_path, model=model).build()


def test_dropout_of_merges_is_for_training_a_tokenizer_only(tmp_path):
    model = json.loads(make_json("qwen"))["model"]
    plain, dropping = write(tmp_path / "a").build(), write(tmp_path / "b", model=model | {"dropout": 0.9}).build()
    text = "the same text has the same tokens on all ranks " * 20
    assert np.array_equal(plain.encode(text), dropping.encode(text))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_pipes_and_endless_files_are_refused_at_once(tmp_path, name):
    config = write(tmp_path)
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), make_hole):
        (tmp_path / name).unlink(missing_ok=True)
        make(tmp_path / name)
        began = time.monotonic()
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            config.build()
        assert time.monotonic() - began < 2


def make_hole(path):
    path.touch()
    os.truncate(path, 100 << 30)


def test_what_others_print_meanwhile_is_shown_afterwards():
    """Only a panic's own lines are dropped. The file descriptor is the process's: in one of its own."""
    lines = (
        "import os",
        "from monograph.train.data.tokenizer_faults import library_errors",
        "with library_errors('x', do='y', hides_panics=True):",
        "    os.write(2, b'a warning')",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, timeout=60, check=True)
    assert done.stderr == b"a warning"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), MemoryError(), DataError("x")])
def test_other_errors_stay_what_they_are(error):
    with pytest.raises(type(error)), library_errors("x", do="y"):
        raise error

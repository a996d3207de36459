import json
import os
import time
import tracemalloc

import pytest

from monograph.system.foreign_json import MAX_DEPTH, UnusableFile, parse_json, read_file, read_json, read_text


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        "[[]," * (MAX_DEPTH + 1) + "1" + "]" * (MAX_DEPTH + 1),
    ],
)
def test_json_that_nests_too_deep_is_refused_with_its_name(text):
    with pytest.raises(UnusableFile, match=r"(?s)cannot read here.*nests more than"):
        parse_json(text, "here")


def test_brackets_inside_of_strings_do_not_count():
    value = {"text": "[" * 1000 + '"\\' + "{" * 1000, "deep": json.loads("[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))}
    assert parse_json(json.dumps(value), "here") == value


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "NaN", '{"a": -Infinity}', '{"a": [1e400]}', "{", "", b"\xff\xfe{"]
)
def test_what_is_not_json_is_refused_with_its_name(text):
    with pytest.raises(UnusableFile, match="cannot read here"):
        parse_json(text, "here")


def test_a_value_of_another_kind_is_refused_in_words():
    with pytest.raises(UnusableFile, match="it holds a list, not an object"):
        parse_json("[1]", "here", kind=dict)


def test_files_that_are_not_regular_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")
    begin = time.monotonic()
    for name in ("fifo", "zero"):
        with pytest.raises(UnusableFile, match=name):
            read_json(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        read_json(tmp_path)
    assert time.monotonic() - begin < 2


def test_a_file_above_the_limit_is_refused_with_its_name(tmp_path):
    (tmp_path / "big").write_bytes(b" " * (3 << 20))
    with pytest.raises(UnusableFile, match="larger than 2 MiB"):
        read_file(tmp_path / "big", max_bytes=2 << 20)


def test_a_file_above_a_limit_of_gigabytes_is_refused_before_memory_is_filled_with_it(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(UnusableFile, match="larger than 128 MiB"):
            read_file(tmp_path / "sparse", max_bytes=128 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_names_and_texts_from_outside_are_shown_escaped(tmp_path):
    path = tmp_path / "a\x1b[2Jb\n12:00:00 I all is well.json"
    path.write_bytes(b"\xff")
    with pytest.raises(UnusableFile) as error:
        read_text(path)
    assert "\x1b" not in str(error.value)
    assert "\n12:00" not in str(error.value)

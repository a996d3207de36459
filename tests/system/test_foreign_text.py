import json

import pytest

from monograph.system.foreign_text import escape_json, escape_lines, show, split_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ä 日本 🙂", "plain text, ä 日本 🙂"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("a\u2028b\x85", r"a\u2028b\x85"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_as_an_escape(text, shown):
    assert show(text) == shown


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a\n\nb\r\nc", ["a", "", "b", "c"]),
        ("a\n", ["a"]),
        ("a\u2028\x0cb\x85\rc\n\n", ["a\u2028\x0cb\x85\rc", ""]),
    ],
)
def test_only_line_feeds_end_lines(text, lines):
    assert split_lines(text) == lines


def test_long_text_loses_its_middle():
    text = show("a" * 10_000 + "z", max_length=90)
    assert len(text) < 100
    assert text.startswith("aaa")
    assert text.endswith("z")


def test_texts_of_several_lines_keep_their_lines():
    assert escape_lines("a\n\tb\x1b[0m\r") == "a\n\tb\\x1b[0m\\r"


def test_json_without_control_characters_reads_back_as_the_same_value():
    value = {"text": "a\x1b[2J\x9b\n\u202eé\ud800"}
    escaped = escape_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(escaped) == value and "é" in escaped and r"\u202e" in escaped and "\x9b" not in escaped

import builtins
import gzip
import json
import logging
import os
import random
import resource
import time
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from monograph.errors import DataError
from monograph.train.data import files, open_bytes
from monograph.train.data.files import open_files


def read(path, *, text_field="text", separator=""):
    return [document.text for document in open_files(path, text_field=text_field, separator=separator).read()]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path, **columns):
    parquet.write_table(pyarrow.table(columns), path, row_group_size=2)
    return path


def refuse(path, match, **settings):
    with pytest.raises(DataError, match=match) as error:
        read(path, **settings)
    assert str(path) in str(error.value) and error.value.do
    return error.value


def test_a_text_file_is_one_document(tmp_path):
    assert read(write(tmp_path / "a.txt", "one\ntwo\n\nthrée")) == ["one\ntwo\n\nthrée"]


def test_a_text_file_is_cut_at_the_separator(tmp_path):
    assert read(write(tmp_path / "a.txt", "one\n---\ntwo\n---\nthree"), separator="\n---\n") == ["one", "two", "three"]


def test_a_byte_order_mark_is_not_text(tmp_path):
    assert read(write(tmp_path / "a.txt", "\ufeffone")) == ["one"]


def test_each_json_line_is_a_document(tmp_path):
    lines = '{"text": "one"}\n\n{"id": 7, "text": "zwei\\n"}\n{"text": "trois"}'
    assert read(write(tmp_path / "a.jsonl", lines)) == ["one", "zwei\n", "trois"]


def test_the_text_field_can_be_chosen(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"body": "one", "text": "no"}')
    assert read(path, text_field="body") == ["one"]
    assert read(write_parquet(tmp_path / "a.parquet", body=["one"], text=["no"]), text_field="body") == ["one"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.ndjson.gz"])
def test_gzipped_lines_are_read(tmp_path, name):
    assert read(write(tmp_path / name, gzip.compress(b'{"text": "one"}\n{"text": "two"}\n'))) == ["one", "two"]


def test_gzipped_text_is_read(tmp_path):
    assert read(write(tmp_path / "a.txt.gz", gzip.compress(b"one"))) == ["one"]


def test_parquet_rows_are_documents_across_row_groups(tmp_path):
    texts = [f"text {number}" for number in range(5)]
    assert read(write_parquet(tmp_path / "a.parquet", text=texts, id=[1, 2, 3, 4, 5])) == texts


def test_a_folder_is_read_in_the_order_of_its_relative_paths(tmp_path):
    write(tmp_path / "b.txt", "4")
    write(tmp_path / "a" / "z.txt", "3")
    write(tmp_path / "a" / "b" / "c.jsonl", '{"text": "1"}\n{"text": "2"}')
    write_parquet(tmp_path / "c.parquet", text=["5"])
    write(tmp_path / ".hidden" / "x.txt", "no")
    write(tmp_path / ".x.txt", "no")
    assert read(tmp_path) == ["1", "2", "3", "4", "5"]


def test_a_folder_says_what_it_leaves_out(tmp_path, caplog):
    write(tmp_path / "a.txt", "one")
    write(tmp_path / "b.csv", "no")
    with caplog.at_level(logging.INFO, "monograph"):
        assert read(tmp_path) == ["one"]
    assert "1 x .csv" in caplog.text


def test_reading_again_starts_again(tmp_path):
    source = open_files(write(tmp_path / "a.jsonl", '{"text": "1"}\n{"text": "2"}'), text_field="text")
    assert next(source.read()).text == "1"
    assert [document.text for document in source.read()] == ["1", "2"]


def test_documents_know_where_they_lie(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "1"}\n\n{"text": "2"}')
    assert [one.where for one in open_files(path, text_field="text").read()] == [f"{path}:1", f"{path}:3"]


def test_a_missing_path_is_refused(tmp_path):
    refuse(tmp_path / "nothing", "does not exist")


def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path):
    assert ".jsonl" in refuse(write(tmp_path / "a.csv", "x"), "cannot read").why
    assert ".jsonl" in refuse(write(tmp_path / "a.json", "{}"), "cannot read").do


def test_a_folder_without_readable_files_is_refused(tmp_path):
    refuse(tmp_path, "no files to read")
    write(tmp_path / "a.csv", "x")
    assert ".csv" in refuse(tmp_path, "no files to read").why


@pytest.mark.parametrize("line", ['{"text": "cut o', "not json", "[1, 2", '{"text": "a"} extra'])
def test_a_broken_json_line_is_refused_with_file_and_line(tmp_path, line):
    path = write(tmp_path / "a.jsonl", f'{{"text": "good"}}\n{line}\n')
    assert f"{path}:2" in refuse(path, "not JSON").what


def test_a_line_that_is_no_object_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "good"}\n["text"]\n')
    assert f"{path}:2" in refuse(path, "expected an object").what


def test_a_missing_field_is_refused_with_the_nearest_name(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"texts": "one", "id": 1}')
    error = refuse(path, "no field 'text'")
    assert f"{path}:1" in error.what and "id, texts" in error.why and error.do == "--dataloader.text_field texts"
    path = write_parquet(tmp_path / "a.parquet", texts=["one"], id=[1])
    assert refuse(path, "no field 'text'").do == "--dataloader.text_field texts"


def test_only_fields_that_hold_text_are_suggested(tmp_path):
    chat = write(tmp_path / "chat.jsonl", '{"messages": [{"role": "user", "content": "hello"}], "n": 1}')
    error = refuse(chat, "no field 'text'")
    assert "a conversation is not one text" in error.do and "own_data_and_optimizer.md" in error.do
    pairs = write(tmp_path / "pairs.jsonl", '{"prompt": "a", "completion": "b"}')
    answer = refuse(pairs, "no field 'text'").do
    assert answer.startswith("a prompt and its answer are one text") and "chat-and-assistant-data" in answer
    two = write(tmp_path / "two.jsonl", '{"title": "a", "body": "b"}')
    assert "one of: body, title" in refuse(two, "no field 'text'").do
    body = write(tmp_path / "body.jsonl", '{"body": "a", "id": 1}')
    assert refuse(body, "no field 'text'").do == "--dataloader.text_field body"


def test_a_field_that_is_not_text_is_refused(tmp_path):
    assert ":1" in refuse(write(tmp_path / "a.jsonl", '{"text": 3}'), "is int, not text").what
    assert ":1" in refuse(write(tmp_path / "a.jsonl", '{"text": null}'), "is NoneType, not text").what
    assert "row 2" in refuse(write_parquet(tmp_path / "a.parquet", text=["a", None]), "not text").what


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    assert "0xe9" in refuse(write(tmp_path / "a.txt", b"caf\xe9"), "not UTF-8").why
    path = write(tmp_path / "a.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n')
    assert f"{path}:2" in refuse(path, "not UTF-8").what


def test_damaged_archives_are_refused(tmp_path):
    packed = gzip.compress(json.dumps({"text": "one" * 1000}).encode() * 50)
    refuse(write(tmp_path / "a.jsonl.gz", packed[: len(packed) // 2]), "cannot read")
    refuse(write(tmp_path / "b.jsonl.gz", b"plain text"), "cannot read")
    refuse(write(tmp_path / "a.parquet", b"PAR1 this is none"), "not a readable parquet")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "a.parquet", text=["one"])
    real = builtins.__import__

    def without_pyarrow(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError("No module named 'pyarrow'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    assert "pip install pyarrow" in refuse(path, "needs pyarrow").do


def test_linked_folders_are_read_once_each(tmp_path, caplog):
    data, big = tmp_path / "data", tmp_path / "big"
    write(data / "own" / "a.txt", "own")
    write(big / "sub" / "b.txt", "linked")
    (data / "wiki").symlink_to(big)
    (data / "again").symlink_to(big / "sub")
    (data / "own" / "cycle").symlink_to(data)
    (big / "up").symlink_to(big)
    with caplog.at_level(logging.INFO, "monograph"):
        documents = list(open_files(data, text_field="text").read())
    assert [(one.text, one.where) for one in documents] == [
        ("linked", f"{data / 'again' / 'b.txt'}"),
        ("own", f"{data / 'own' / 'a.txt'}"),
    ]
    assert "3 already read under another name (own/cycle, wiki/sub, wiki/up)" in caplog.text


def test_a_folder_of_the_dataset_keeps_its_name_when_a_link_leads_to_it(tmp_path):
    write(tmp_path / "z" / "a.txt", "one")
    (tmp_path / "a").symlink_to(tmp_path / "z")
    assert [one.where for one in open_files(tmp_path, text_field="text").read()] == [str(tmp_path / "z" / "a.txt")]


def test_a_link_that_leads_nowhere_is_refused(tmp_path):
    write(tmp_path / "a.txt", "one")
    (tmp_path / "books.jsonl").symlink_to(tmp_path / "missing")
    assert "books.jsonl" in refuse(tmp_path, "leads nowhere").what
    (tmp_path / "books.jsonl").unlink()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse(tmp_path, "loop")


def test_a_folder_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    write(tmp_path / "a.txt", "one")
    write(tmp_path / "closed" / "b.txt", "two")
    real = os.scandir

    def without_permission(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", without_permission)
    assert "Permission denied" in refuse(tmp_path, "closed").why


def test_hidden_names_and_many_endings_are_counted(tmp_path, caplog):
    for name in ("a.txt", ".secret", ".git/config", *(f"x.{number}" for number in range(20))):
        write(tmp_path / name, "one")
    with caplog.at_level(logging.INFO, "monograph"):
        assert read(tmp_path) == ["one"]
    assert "2 hidden (.git, .secret)" in caplog.text and "12 with other endings" in caplog.text


@pytest.mark.parametrize("kind", ["a.txt", "a.jsonl", "a.txt.gz", "a.parquet"])
def test_a_fifo_and_a_device_are_refused_and_not_waited_for(tmp_path, kind):
    os.mkfifo(tmp_path / kind)
    assert "FIFO" in refuse(tmp_path / kind, "cannot read").why
    assert "FIFO" in refuse(tmp_path, "cannot read").why
    (tmp_path / kind).unlink()
    (tmp_path / kind).symlink_to("/dev/zero")
    assert "device" in refuse(tmp_path / kind, "cannot read").why


def test_an_archive_that_unpacks_to_far_more_than_text_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(open_bytes, "ALWAYS_UNPACKED", 1 << 20)
    packed = gzip.compress(b" " * (1 << 22))
    assert "200 bytes" in refuse(write(tmp_path / "a.txt.gz", packed), "unpacks to more than").why
    refuse(write(tmp_path / "a.jsonl.gz", packed), "unpacks to more than")
    honest = json.dumps({"text": "".join(random.Random(1).choices("abcdefgh ", k=1 << 21))})
    assert len(read(write(tmp_path / "b.jsonl.gz", gzip.compress(honest.encode())))) == 1


@pytest.mark.parametrize(
    ("name", "begin", "match"),
    [
        ("a.txt", b"one", "a document of more than 1 GiB"),
        ("a.jsonl", b'{"text": "one"}\n', r":2: this line is not JSON"),
        ("a.txt.gz", gzip.compress(b"one", mtime=0), "cannot read"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n', mtime=0), "cannot read"),
    ],
)
def test_a_file_that_ends_in_a_hole_of_100_gb_is_refused_at_once(tmp_path, name, begin, match):
    path = write(tmp_path / name, begin)
    os.truncate(path, 100 << 30)
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse(path, match)
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_zeros_that_pad_an_archive_are_passed_over(tmp_path):
    packed = gzip.compress(b"one") + b"\0" * 10_000 + gzip.compress(b" two") + b"\0" * 10_000
    assert read(write(tmp_path / "a.txt.gz", packed)) == ["one two"]


def test_a_document_is_bounded_whatever_the_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(open_bytes, "MAX_DOCUMENT_BYTES", 1 << 10)
    path = write(tmp_path / "a.txt", "x" * 900 + "---" + "y" * 900 + "---" + "z" * 1100)
    assert "document_separator" in refuse(path, "a document of more than").do
    refuse(path, "a document of more than", separator="---")
    refuse(write(tmp_path / "a.txt.gz", gzip.compress(path.read_bytes())), "a document of more than")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize("separator", ["\n\n", "é", "aba", "---", "\ud800"])
def test_parts_are_those_that_splitting_the_whole_text_gives(tmp_path, monkeypatch, size, separator):
    monkeypatch.setattr(open_bytes, "READ_BYTES", size)
    texts = ("", "\n\n\n", "\ufeffé\ufeffééa\n\nb\ufeff", "ababababa---aba-----\n\n\n\n", "---", "x\n\n\ufeffy")
    for number, text in enumerate(texts):
        path = write(tmp_path / f"{number}.txt", text)
        assert read(path, separator=separator) == text.removeprefix("\ufeff").split(separator)


def test_bytes_that_are_not_utf8_are_counted_from_the_beginning_of_the_file(tmp_path):
    path = write(tmp_path / "a.txt", b"one---two---caf\xe9")
    assert "byte 15 is 0xe9" in refuse(path, "not UTF-8", separator="---").why


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 1 << 10)
    path = write(tmp_path / "a.jsonl", '{"text": "one"}\n' + "x" * 5000)
    assert f"{path}:2" in refuse(path, "longer than").what


def test_long_lines_are_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(open_bytes, "LINE_PIECE_BYTES", 7)
    texts = ["x" * count for count in range(40)]
    assert read(write(tmp_path / "a.jsonl", "\n".join(json.dumps({"text": text}) for text in texts))) == texts


def test_parquet_text_that_is_not_utf8_is_refused_with_its_row(tmp_path):
    texts = pyarrow.array([b"one", b"caf\xe9"], pyarrow.binary()).view(pyarrow.string())
    assert "row 2" in refuse(write_parquet(tmp_path / "a.parquet", text=texts), "not UTF-8").what


def test_names_that_forge_log_lines_are_escaped(tmp_path, caplog):
    folder = tmp_path / "data\n01:00:00 I all is well\x1b[2J"
    write(folder / "a\n.jsonl", '{"text": "one"}\n{"text": 3}')
    write(folder / "b.\x1b[2J", "")
    with caplog.at_level(logging.INFO, "monograph"), pytest.raises(DataError) as error:
        read(folder)
    for said in (caplog.text.strip(), error.value.what, open_files(folder, text_field="text").description):
        assert "\\x1b[2J" in said and "\x1b" not in said and "\n" not in said

"""Manifests of checkpoints and artifacts: one form, one way to refuse what is not what it must be."""

import re

import pytest

from monograph.manifest.fields import FileRecord, ManifestError, integer, listing, one_of, read_files, record, string
from monograph.manifest.sealed import OtherSchema, open_sealed, parse_sealed, seal

REST = b'"schema":1,\n"step":3\n}\n'
NAME = re.compile(r"[a-z]+\.bin")
SHA = "0" * 64


def test_what_is_sealed_opens_and_any_changed_byte_is_found_before_parsing():
    data = seal(REST)
    assert open_sealed(data).rest == REST
    assert parse_sealed(data, schema=1)["step"] == 3
    for index in range(len(data)):
        with pytest.raises(ManifestError):
            open_sealed(data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :])


@pytest.mark.parametrize("schema", ["2", '"1"', "true", "1.0", "null"])
def test_another_schema_is_told_apart_from_damage(schema):
    with pytest.raises(OtherSchema, match="this version reads schema 1"):
        parse_sealed(seal(REST.replace(b"1", schema.encode(), 1)), schema=1)


@pytest.mark.parametrize("rest", [b'"schema":1,"schema":1}', b'"schema":1,"step":NaN}', b'"schema":1', b"[" * 100_000])
def test_doubled_fields_odd_numbers_and_text_that_is_no_json_are_refused(rest):
    with pytest.raises(ManifestError, match="it is not JSON"):
        parse_sealed(seal(rest), schema=1)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"size": 1}, "x.kind is missing"),
        ({"size": True, "kind": "a", "parts": []}, "x.size is True"),
        ({"size": -1, "kind": "a", "parts": []}, "x.size is -1"),
        ({"size": 1, "kind": "c", "parts": []}, "x.kind is 'c', and must be one of a, b"),
        ({"size": 1, "kind": "a", "parts": ["", 7]}, "x.parts.1 is 7"),
        ({"size": 1, "kind": "a", "parts": [], "more": 1}, "x has the field 'more'"),
        ([], "x is \\[\\], and must be an object"),
    ],
)
def test_a_field_that_is_not_what_it_must_be_is_refused_by_its_path(value, named):
    check = record({"size": integer(0), "kind": one_of({"a", "b"}), "parts": listing(string)})
    with pytest.raises(ManifestError, match=named):
        check(value, "x")


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("../a.bin", {"size": 1, "sha256": SHA}),
        ("a.bin", {"size": -1, "sha256": SHA}),
        ("a.bin", {"size": 1, "sha256": SHA[:-1]}),
        ("a.bin", {"size": 1}),
    ],
)
def test_files_stay_in_their_folder_and_have_a_size_and_a_hash(name, entry):
    good = FileRecord(1, SHA)
    assert read_files({"a.bin": good.to_data()}, "files", NAME) == {"a.bin": good}
    with pytest.raises(ManifestError, match="files"):
        read_files({name: entry}, "files", NAME)

"""Keys come from files that only their owner can read, or from the environment, and signatures are told as they are."""

import json

import pytest

from monograph.cli import main
from monograph.commands.table import COMMANDS
from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.execute.artifact.folder import write_artifact
from monograph.execute.artifact.keys import KEY_VARIABLE, find_fingerprint, read_key
from monograph.execute.artifact.manifest import MANIFEST
from monograph.recipes.catalog import load_recipe
from tests.execute.artifacts import make_sections
from tests.execute.test_artifact_command import RECIPE, said, write

KEY, OTHER = b"a key for tests, long enough", b"another key, long enough too"


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def key_file(tmp_path):
    return make_key(tmp_path / "key", KEY)


def make_key(path, key):
    path.write_bytes(key + b"\n")
    path.chmod(0o600)
    return str(path)


def test_the_key_comes_from_a_file_or_from_the_environment(key_file, monkeypatch):
    assert read_key() is None
    monkeypatch.setenv(KEY_VARIABLE, OTHER.decode() + "\n")
    assert read_key() == OTHER
    assert read_key(key_file) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o777])
def test_a_key_file_that_others_can_read_or_write_is_refused(tmp_path, key_file, mode):
    (tmp_path / "key").chmod(mode)
    with pytest.raises(ConfigError, match=f"mode {mode:04o}") as refused:
        read_key(key_file)
    assert "chmod 600" in refused.value.do


@pytest.mark.parametrize("content", [b"", b"\n", b"short", b"fifteen bytes !"])
def test_a_key_that_can_be_guessed_is_refused(tmp_path, content, monkeypatch):
    with pytest.raises(ConfigError, match="bytes"):
        read_key(make_key(tmp_path / "weak", content))
    monkeypatch.setenv(KEY_VARIABLE, "short")
    with pytest.raises(ConfigError, match=f"{KEY_VARIABLE} has a key of 5 bytes"):
        read_key()


def test_a_key_file_that_is_no_file_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    for name in ("folder", "nowhere"):
        with pytest.raises(ConfigError, match="key file"):
            read_key(str(tmp_path / name))


def test_no_command_takes_a_key_itself():
    fields = [leaf for command in COMMANDS if command.arguments for leaf in find_leaves(command.arguments())]
    fields += find_leaves(load_recipe(RECIPE))
    keys = [leaf for leaf in fields if ("artifact" in leaf.path and "key" in leaf.path) or leaf.path.startswith("key")]
    assert {leaf.path for leaf in keys} == {"key_file", "compile.artifact_key_file"}


def test_show_and_check_say_what_is_known_of_a_signature(tmp_path, capsys, key_file):
    folder, fingerprint = write(tmp_path / "artifact"), find_fingerprint(KEY)
    show, check = ["artifact", "show", folder], ["artifact", "check", folder, RECIPE, "--ranks", "2"]
    for words in (show, check):
        assert main(words) == 0
        assert "unsigned" in said(capsys)
    assert main(["artifact", "sign", folder, "--key_file", key_file]) == 0
    capsys.readouterr()
    for words in (show, check):
        assert main(words) == 0
        told = said(capsys)
        assert "signed, not verified (no key given)" in told and fingerprint not in told
    other = make_key(tmp_path / "other", OTHER)
    for words, flag in ((show, "--key_file"), (check, "--compile.artifact_key_file")):
        assert main([*words, flag, key_file]) == 0
        assert f"signed and verified with key {fingerprint}" in said(capsys)
        assert main([*words, flag, other]) == 2
        assert "signature does not match" in said(capsys)


def test_sign_and_verify_need_a_key_and_say_how_to_make_one(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    for command in ("sign", "verify"):
        assert main(["artifact", command, folder]) == 2
        told = said(capsys)
        assert "needs a key" in told and KEY_VARIABLE in told and "urandom" in told


def test_what_was_signed_is_verified_until_a_byte_changes(tmp_path, capsys, key_file):
    folder = write(tmp_path / "artifact")
    verify = ["artifact", "verify", folder, "--key_file", key_file]
    assert main(verify) == 2
    assert "unsigned" in said(capsys)
    assert main(["artifact", "sign", folder, "--key_file", key_file]) == 0
    assert f"signed with key {find_fingerprint(KEY)}" in said(capsys)
    assert main(verify) == 0
    assert f"signed and verified with key {find_fingerprint(KEY)}" in said(capsys)
    (tmp_path / "artifact" / "step.json").write_bytes(b"[]")
    assert main(verify) == 2
    assert "step.json of the artifact is damaged" in said(capsys)


def test_signing_changes_nothing_but_the_signature(tmp_path, capsys, key_file):
    write_artifact(tmp_path / "one", make_sections(), {"step.json": b"{}"}, key=KEY)
    write_artifact(tmp_path / "other", make_sections(), {"step.json": b"{}"})
    for _ in range(2):
        assert main(["artifact", "sign", str(tmp_path / "other"), "--key_file", key_file]) == 0
    assert "already signed" in said(capsys)
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "other" / MANIFEST).read_bytes()
    assert [path.name for path in (tmp_path / "other").iterdir()] != []
    assert not [path for path in (tmp_path / "other").iterdir() if path.name.startswith(".")]


def test_a_signature_of_another_key_is_replaced_only_when_asked(tmp_path, capsys, key_file):
    write_artifact(tmp_path / "artifact", make_sections(), {"step.json": b"{}"}, key=OTHER)
    words = ["artifact", "sign", str(tmp_path / "artifact"), "--key_file", key_file]
    assert main(words) == 2
    assert "is signed already" in said(capsys)
    assert main([*words, "--overwrite", "true"]) == 0
    assert main(["artifact", "verify", str(tmp_path / "artifact"), "--key_file", key_file]) == 0


def test_a_damaged_artifact_is_not_signed(tmp_path, capsys, key_file):
    folder = write(tmp_path / "artifact")
    (tmp_path / "artifact" / "step.json").write_bytes(b"[]")
    assert main(["artifact", "sign", folder, "--key_file", key_file]) == 2
    assert json.loads((tmp_path / "artifact" / MANIFEST).read_text())["hmac"] == ""


def test_signing_what_others_could_have_changed_is_warned_of_once(tmp_path, capsys, key_file):
    folder = write(tmp_path / "artifact")
    words = ["artifact", "sign", folder, "--key_file", key_file]
    (tmp_path / "artifact").chmod(0o777)
    for count in (1, 0):
        assert main(words) == 0
        assert said(capsys).count("other users could change it until now") == count

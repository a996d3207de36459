"""Code in an artifact runs only when nobody else could have written it, or when a key vouches for it."""

import logging
import os
from types import SimpleNamespace

import pytest

from monograph.cli import main
from monograph.execute.artifact.check import trust_code
from monograph.execute.artifact.folder import read_manifest, write_artifact
from monograph.execute.artifact.manifest import MANIFEST, ArtifactError
from monograph.execute.artifact.trust import check_code, find_trust
from monograph.execute.config import CompileConfig
from tests.execute.artifacts import make_sections, open_folder
from tests.execute.test_artifact_command import RECIPE, said, write
from tests.execute.test_artifact_trust import CODE, KEY
from tests.test_permissions import MASK, NOBODY, OWN_GROUP, USER, set_acl

FILES = {"step.json": b"{}", **CODE}
WITH_COMPILER, WITHOUT = (
    SimpleNamespace(passes=SimpleNamespace(has_compiler=each), model=None) for each in (True, False)
)


@pytest.fixture
def artifact(tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), FILES)
    return tmp_path / "artifact"


def expose(path):
    path.chmod(path.stat().st_mode | 0o002)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077], ids=oct)
def test_whatever_the_umask_nobody_else_can_write_to_a_new_artifact(tmp_path, umask):
    before = os.umask(umask)
    try:
        write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), FILES)
    finally:
        os.umask(before)
    for path in (tmp_path / "artifact", *(tmp_path / "artifact").rglob("*")):
        assert path.stat().st_mode & 0o022 == 0, path
    assert find_trust(tmp_path / "artifact", read_manifest(tmp_path / "artifact")).exposed == []


def test_a_default_access_control_list_does_not_expose_a_new_artifact(tmp_path):
    everyone = [(OWN_GROUP, 7, 2**32 - 1), (MASK, 7, 2**32 - 1)]
    set_acl(tmp_path, (USER, 7, NOBODY), *everyone, name="default")
    write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), FILES)
    assert find_trust(tmp_path / "artifact", read_manifest(tmp_path / "artifact")).exposed == []


def test_code_below_a_folder_that_others_can_write_to_does_not_run(artifact):
    expose(artifact.parent)
    with pytest.raises(ArtifactError, match="other users can change it"):
        trust_code(artifact, read_manifest(artifact), WITH_COMPILER, CompileConfig())


def test_code_that_an_access_control_list_opens_to_one_user_does_not_run(artifact):
    set_acl(artifact / MANIFEST, (USER, 6, NOBODY), (OWN_GROUP, 4, 2**32 - 1), (MASK, 6, 2**32 - 1))
    with pytest.raises(ArtifactError, match="access control list lets user"):
        trust_code(artifact, read_manifest(artifact), WITH_COMPILER, CompileConfig())


@pytest.mark.parametrize("name", ["", "manifest.json", "regions", "regions/step-compiled_0.bin", "kernels/ab"])
def test_code_that_other_users_could_have_written_is_refused_by_path_mode_and_remedy(artifact, name):
    expose(artifact / name)
    manifest = read_manifest(artifact)
    with pytest.raises(ArtifactError, match="compiled code, is unsigned") as refused:
        trust_code(artifact, manifest, WITH_COMPILER, CompileConfig())
    assert str(artifact / name) in refused.value.why and "lets everybody write" in refused.value.why
    for remedy in ("artifact sign", "chmod", "--compile.artifact_trust_shared_folder true"):
        assert remedy in refused.value.do
    trusted = trust_code(artifact, manifest, WITH_COMPILER, CompileConfig(artifact_trust_shared_folder=True))
    assert trusted.may_run_code


def test_a_signature_that_was_verified_makes_up_for_a_shared_folder_and_one_that_was_not_does_not(tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), FILES, key=KEY)
    expose(tmp_path / "artifact")
    trust = trust_code(tmp_path / "artifact", read_manifest(tmp_path / "artifact", KEY), WITH_COMPILER, CompileConfig())
    assert trust.may_run_code and trust.warn(tmp_path) == ""
    with pytest.raises(ArtifactError, match="signed, not verified"):
        trust_code(tmp_path / "artifact", read_manifest(tmp_path / "artifact"), WITH_COMPILER, CompileConfig())


def test_compiled_parts_that_this_run_did_not_ask_for_are_refused(artifact):
    manifest = read_manifest(artifact)
    trust_code(artifact, manifest, WITH_COMPILER, CompileConfig())
    with pytest.raises(ArtifactError, match="has compiled parts, and this run compiles nothing"):
        trust_code(artifact, manifest, WITHOUT, CompileConfig())


def test_a_file_that_is_opened_to_others_after_the_check_is_refused_as_it_is_read(artifact):
    opened = open_folder(artifact)
    check_code(artifact, opened.manifest, opened.trust, is_asked_for=True)
    expose(artifact / "regions/step-compiled_0.bin")
    with pytest.raises(ArtifactError, match=r"cannot be read") as refused:
        opened.read_code("regions/step-compiled_0.bin")
    assert "it is code, and mode" in refused.value.why


def test_kernels_of_custom_ops_from_a_shared_folder_are_built_instead(tmp_path, caplog):
    files = {"step.json": b"{}", "own/calls.json": b"[]", "own/kernels/ab/x.so": b"not a library"}
    write_artifact(tmp_path / "artifact", make_sections(), files)
    assert open_folder(tmp_path / "artifact").load_custom_kernels()
    expose(tmp_path / "artifact")
    with caplog.at_level(logging.WARNING, logger="monograph.artifact"):
        assert not open_folder(tmp_path / "artifact").load_custom_kernels()
    assert "are built here" in caplog.text
    assert open_folder(tmp_path / "artifact", is_shared_trusted=True).load_custom_kernels()


def test_show_and_check_warn_of_a_folder_that_others_can_write_to(tmp_path, capsys):
    folder = write(tmp_path / "artifact")
    words = ["artifact", "show", folder], ["artifact", "check", folder, RECIPE, "--ranks", "2"]
    for each in words:
        assert main(each) == 0
        assert "warning" not in said(capsys)
    (tmp_path / "artifact").chmod(0o777)
    for each in words:
        assert main(each) == 0
        told = said(capsys)
        assert f"{folder}: mode 0777 lets everybody write" in told and f"monograph artifact sign {folder}" in told

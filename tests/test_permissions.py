"""Who else can write to a file is told by its owner and mode."""

import os
import pwd
from types import SimpleNamespace
from unittest import mock

import pytest

from monograph.permissions import find_exposed, find_writer

SHARED = 4242
"""A group that nobody has a user of the same name for."""


@pytest.mark.parametrize(("mode", "expected"), [(0o700, ""), (0o755, ""), (0o644, ""), (0o400, "")])
def test_what_only_its_owner_can_write_is_private(tmp_path, mode, expected):
    tmp_path.chmod(mode)
    assert find_writer(tmp_path.stat()) == expected


def test_what_everybody_can_write_is_named_with_its_mode(tmp_path):
    tmp_path.chmod(0o757)
    assert find_exposed([tmp_path]) == [f"{tmp_path}: mode 0757 lets everybody write"]


def test_what_a_group_can_write_is_named_unless_the_group_is_the_owners_alone(tmp_path):
    tmp_path.chmod(0o770)
    user = pwd.getpwuid(os.geteuid()).pw_name
    groups = {"of many": ("staff", []), "of one": (user, []), "of one and another": (user, ["another"])}
    found = {}
    for name, (group, members) in groups.items():
        entry = SimpleNamespace(gr_name=group, gr_mem=members)
        with mock.patch("grp.getgrgid", return_value=entry):
            found[name] = find_writer(tmp_path.stat())
    assert found["of one"] == ""
    assert found["of many"] == "mode 0770 lets group staff write"
    assert "lets group" in found["of one and another"]


def test_what_belongs_to_another_user_is_theirs_to_write(tmp_path):
    found = SimpleNamespace(st_mode=0o40700, st_uid=os.geteuid() + 1234, st_gid=SHARED)
    assert find_writer(found) == f"it belongs to user {os.geteuid() + 1234}"
    assert find_writer(SimpleNamespace(st_mode=0o40755, st_uid=0, st_gid=SHARED)) == ""


def test_what_is_not_there_is_not_exposed(tmp_path):
    assert find_exposed([tmp_path / "nowhere"]) == []

"""Who else can write to a file is told by its owner, mode, access control list and groups."""

import os
import struct
from types import SimpleNamespace

import pytest

from monograph import permissions
from monograph.permissions import find_exposed, find_exposed_parents, find_writer, read_acl

SHARED = 4242
"""A group that nobody has a user of the same name for."""
USER, GROUP, OWN_GROUP, MASK = 2, 8, 4, 16
NOBODY = 65534


def make_acl(*entries):
    """An access control list as Linux keeps it: (tag, permissions, user or group) beside those of the mode."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in sorted(entries))


def set_acl(path, *entries, name="access"):
    """Give a file such a list; the test is left out where the file system has none."""
    everyone = ((1, 6, 2**32 - 1), (32, 4, 2**32 - 1))
    try:
        os.setxattr(path, f"system.posix_acl_{name}", make_acl(*everyone, *entries))
    except (AttributeError, OSError):
        pytest.skip("there are no access control lists here")


@pytest.fixture
def own_group(monkeypatch):
    """A user 4711 with a group 4711 of the same name, on a machine where this process runs as that user."""
    own = SimpleNamespace(group="me", members=[], primary={4711: frozenset({4711})}, gid=4711)
    status = SimpleNamespace(st_mode=0o100664, st_uid=4711, st_gid=4711)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="me", pw_gid=4711))
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name=own.group, gr_mem=own.members))
    monkeypatch.setattr(permissions, "_read_primary_groups", lambda: own.primary)
    own.find_writer = lambda acl=b"": find_writer(status, acl)
    own.status = status
    return own


@pytest.mark.parametrize(("mode", "expected"), [(0o700, ""), (0o755, ""), (0o644, ""), (0o400, "")])
def test_what_only_its_owner_can_write_is_private(tmp_path, mode, expected):
    tmp_path.chmod(mode)
    assert find_writer(tmp_path.stat()) == expected


def test_what_everybody_can_write_is_named_with_its_mode(tmp_path):
    tmp_path.chmod(0o757)
    assert find_exposed([tmp_path]) == [f"{tmp_path}: mode 0757 lets everybody write"]


def test_what_a_group_can_write_is_named_unless_the_group_is_the_owners_alone(own_group):
    assert own_group.find_writer() == ""
    own_group.members = ["me"]
    assert own_group.find_writer() == ""
    own_group.members = ["me", "another"]
    assert "lets group" in own_group.find_writer()
    own_group.group, own_group.members = "staff", []
    assert own_group.find_writer() == "mode 0664 lets group staff write"


def test_a_group_that_is_another_users_primary_group_is_not_private(own_group):
    own_group.primary = {4711: frozenset({4711, 12})}
    assert "lets group me write" in own_group.find_writer()


def test_primary_groups_are_read_from_the_list_of_users(tmp_path, monkeypatch):
    (tmp_path / "passwd").write_text("me:x:4711:4711::/:\nit:x:12:4711::/:\n+::::::\nbroken\n")
    monkeypatch.setattr(permissions, "_PASSWD", tmp_path / "passwd")
    assert permissions._read_primary_groups.__wrapped__() == {4711: frozenset({4711, 12})}
    monkeypatch.setattr(permissions, "_PASSWD", tmp_path / "nowhere")
    assert permissions._read_primary_groups.__wrapped__() == {}


def test_group_zero_is_never_private(monkeypatch):
    monkeypatch.setattr("grp.getgrgid", lambda _: SimpleNamespace(gr_name="root", gr_mem=[]))
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="root", pw_gid=0))
    assert "lets group root write" in find_writer(SimpleNamespace(st_mode=0o100664, st_uid=0, st_gid=0))


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([(USER, 6, NOBODY), (OWN_GROUP, 4, 0), (MASK, 6, 0)], "lets user"),
        ([(USER, 6, NOBODY), (OWN_GROUP, 4, 0), (MASK, 4, 0)], ""),
        ([(USER, 6, 4711), (OWN_GROUP, 4, 0), (MASK, 6, 0)], ""),
        ([(USER, 4, NOBODY), (OWN_GROUP, 6, 0), (MASK, 6, 0)], ""),
        ([(GROUP, 6, 0), (OWN_GROUP, 4, 0), (MASK, 6, 0)], "lets group"),
        ([(GROUP, 6, 0), (OWN_GROUP, 4, 0), (MASK, 5, 0)], ""),
    ],
)
def test_entries_of_an_access_control_list_count_within_its_mask(own_group, entries, expected):
    found = own_group.find_writer(make_acl(*entries))
    assert (expected in found) if expected else not found


@pytest.mark.parametrize("acl", [b"\2\0\0\0", b"\3\0\0\0" + bytes(8), bytes(7), permissions._UNREADABLE], ids=repr)
def test_an_access_control_list_of_an_unknown_layout_counts_as_exposure(own_group, acl):
    assert "cannot be read" in own_group.find_writer(acl)


def test_a_user_named_in_an_access_control_list_is_found_on_disk(tmp_path):
    (tmp_path / "file").write_text("")
    assert read_acl(tmp_path / "file") == b"" and find_exposed([tmp_path / "file"]) == []
    set_acl(tmp_path / "file", (USER, 6, NOBODY), (OWN_GROUP, 4, 2**32 - 1), (MASK, 6, 2**32 - 1))
    assert "access control list lets user" in find_exposed([tmp_path / "file"])[0]


def test_a_folder_that_others_can_rename_from_is_named(tmp_path):
    inner = tmp_path / "shared" / "mine" / "artifact"
    inner.mkdir(parents=True)
    assert find_exposed_parents(inner) == []
    (tmp_path / "shared").chmod(0o777)
    assert find_exposed_parents(inner) == [f"{tmp_path / 'shared'}: mode 0777 lets everybody write"]
    (tmp_path / "link").symlink_to(inner)
    assert find_exposed_parents(tmp_path / "link"), "what a link leads to lies below that folder, too"
    (tmp_path / "shared").chmod(0o1777)
    assert find_exposed_parents(inner) == [], "with the sticky bit, others cannot rename what is mine"


def test_folders_of_the_machine_above_a_container_are_not_another_users(tmp_path, monkeypatch):
    inner, real = tmp_path / "artifact", os.stat
    theirs = os.stat_result((*real(tmp_path)[:4], NOBODY, *real(tmp_path)[5:]))
    monkeypatch.setattr(type(inner), "stat", lambda path, **_: theirs if path == tmp_path else real(path))
    monkeypatch.setattr(permissions, "_find_overflow_uid", lambda: None)
    assert find_exposed_parents(inner)
    monkeypatch.setattr(permissions, "_find_overflow_uid", lambda: NOBODY)
    assert find_exposed_parents(inner) == []


def test_what_belongs_to_another_user_is_theirs_to_write(tmp_path):
    found = SimpleNamespace(st_mode=0o40700, st_uid=os.geteuid() + 1234, st_gid=SHARED)
    assert find_writer(found) == f"it belongs to user {os.geteuid() + 1234}"
    assert find_writer(SimpleNamespace(st_mode=0o40755, st_uid=0, st_gid=SHARED)) == ""


def test_what_is_not_there_is_not_exposed(tmp_path):
    assert find_exposed([tmp_path / "nowhere"]) == []

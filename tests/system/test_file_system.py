"""Local and network file systems are told apart by the table of mounts."""

from pathlib import Path

import pytest

from monograph.system import file_system
from monograph.system.file_system import is_local

MOUNTS = r"""22 27 0:21 / /proc rw - proc proc rw
27 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 27 0:40 / /data rw - nfs4 server:/data rw
31 30 0:41 / /data/scratch rw - xfs /dev/sdb rw
32 27 0:42 / /my\040disk rw - lustre x rw
33 27 0:43 / /twice rw - tmpfs x rw
34 27 0:44 / /twice rw - fuse.sshfs x rw
35 27 0:45 / /shared rw - virtiofs x rw
"""


@pytest.fixture(autouse=True)
def mounts(tmp_path, monkeypatch) -> Path:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    monkeypatch.setattr(file_system, "_MOUNTS", table)
    return table


@pytest.mark.parametrize("path", ["/", "/home/me", "/database/x", "/data/scratch/run", "/data/scratch"])
def test_disks_of_this_machine_are_local(path):
    assert is_local(Path(path))


@pytest.mark.parametrize(
    "path", ["/data", "/data/run", "/data/scratchy", "/my disk/x", "/twice/x", "/shared", "/proc/1"]
)
def test_network_mounts_and_unknown_kinds_are_not(path):
    assert not is_local(Path(path))


def test_mounts_of_other_users_with_odd_names_change_nothing(mounts):
    mounts.write_text("28 27 0:50 / /home/them/a\u2028b\rc\x85d rw - fuse.x x rw\n" + MOUNTS, newline="")
    assert is_local(Path("/data/scratch")) and not is_local(Path("/data"))


def test_a_link_is_followed_to_its_disk(tmp_path):
    (tmp_path / "run").symlink_to("/data/run")
    assert not is_local(tmp_path / "run")


def test_nothing_is_local_without_a_table_of_mounts(mounts):
    mounts.unlink()
    assert not is_local(Path("/"))

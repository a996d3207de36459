"""Tuned settings on disk: read back, kept apart by GPU and source, added to by several writers, damaged."""

import errno
import fcntl
import logging
import multiprocessing
from dataclasses import replace

import pytest

from monograph.kernels import tuned_file
from monograph.kernels.tuned_file import (
    GpuKind,
    TunedKernel,
    find_folder,
    hash_kernels,
    parse_tuned,
    read_tuned,
    render_tuned,
    write_tuned,
)
from monograph.kernels.tuning import TunedKey

H200 = GpuKind("NVIDIA H200", "9.0", "3.6.0", "0123456789abcdef")
WRITERS = 4


def tuned(*sizes, group=8):
    return TunedKernel(TunedKey("scale", sizes), {"group": group}, 2.0, 1.5)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_settings_are_read_back_and_later_ones_replace_them():
    assert read_tuned(H200) == {}
    path = write_tuned(H200, [tuned(3), tuned(4)])
    write_tuned(H200, [tuned(4, group=4)])
    assert read_tuned(H200) == {each.key: each for each in (tuned(3), tuned(4, group=4))}
    assert path == find_folder() / "NVIDIA-H200-sm9.0-triton3.6.0-0123456789abcdef.json"


@pytest.mark.parametrize("field", ["name", "capability", "triton", "source"])
def test_another_gpu_version_or_source_has_another_file(field):
    write_tuned(H200, [tuned(3)])
    other = replace(H200, **{field: "other"})
    assert read_tuned(other) == {}
    (find_folder() / other.file_name).write_bytes((find_folder() / H200.file_name).read_bytes())
    assert read_tuned(other) == {}, "a copy under another name is not believed"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"\xff" * 100,
        lambda content: b"[" * 100_000,
        lambda content: b"[]",
        lambda content: content.replace(b'"group": 8', b'"group": 8.5'),
        lambda content: content.replace(b'"group": 8', b'"group": NaN'),
        lambda content: content.replace(b"1.5", b"-1.5"),
        lambda content: content.replace(b'"kernel"', b'"colonel"'),
        lambda content: content.replace(b'"name"', b'"surname"'),
    ],
)
def test_a_damaged_file_is_ignored_with_a_warning_and_replaced(damage, caplog):
    path = write_tuned(H200, [tuned(3)])
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        assert read_tuned(H200) == {}
    assert f"{path} is damaged" in caplog.text
    write_tuned(H200, [tuned(4)])
    assert read_tuned(H200) == {tuned(4).key: tuned(4)}


def write_many(first):
    for size in range(first, first + 20):
        write_tuned(H200, [tuned(size)])


def test_of_several_writers_at_once_none_loses_anything():
    processes = multiprocessing.get_context("fork").Pool(WRITERS)
    with processes:
        processes.map(write_many, range(0, 20 * WRITERS, 20))
    assert {key.sizes[0] for key in read_tuned(H200)} == set(range(20 * WRITERS))
    left = {path.name for path in find_folder().iterdir()}
    assert left == {H200.file_name, H200.file_name.replace(".json", ".lock")}


def test_the_same_settings_are_the_same_bytes():
    both = [tuned(3), tuned(4)]
    one, other = (render_tuned(H200, {each.key: each for each in order}) for order in (both, both[::-1]))
    assert one == other
    assert parse_tuned(one) == (H200, {each.key: each for each in both})


def test_the_digest_of_the_kernels_is_that_of_their_files():
    assert len(hash_kernels()) == 16
    assert hash_kernels() == hash_kernels.__wrapped__()


def test_a_file_that_cannot_be_read_now_is_not_replaced(monkeypatch):
    """Once an input/output error lost what earlier runs had tuned."""
    write_tuned(H200, [tuned(3)])

    def refuse(path):
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="input/output"):
        broken.setattr(tuned_file, "read_file", refuse)
        write_tuned(H200, [tuned(4)])
    assert set(read_tuned(H200)) == {tuned(3).key}


def test_a_lock_that_does_not_end_delays_a_writer_and_does_not_stop_it(monkeypatch, caplog):
    """A file server can keep the lock of a machine that has died."""
    monkeypatch.setattr(tuned_file, "LOCK_SECONDS", 0.1)
    lock = (find_folder() / H200.file_name).with_suffix(".lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("ab") as dead:
        fcntl.flock(dead, fcntl.LOCK_EX)
        write_tuned(H200, [tuned(3)])
    assert set(read_tuned(H200)) == {tuned(3).key} and "going on without the lock" in caplog.text

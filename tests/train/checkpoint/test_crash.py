"""A save may stop at any point: what can be loaded afterwards is the old state or the new one, never a mixture."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.train.checkpoint.disks import (
    CountingDisk,
    Crash,
    CrashingDisk,
    PowerLossDisk,
    blank,
    make_manager,
    make_state,
    same,
    save_new,
    save_steps,
)

SCENARIOS = {
    "a new step": ([1], 2, {"keep_last": 0}),
    "a new step, after which the old one is deleted": ([1], 2, {"keep_last": 1}),
    "the same step again": ([1, 2], 2, {"keep_last": 0}),
    "the only step again": ([2], 2, {"keep_last": 1}),
}


def count_calls(folder: Path, steps: list[int], new: int, settings: dict) -> int:
    save_steps(folder, *steps, keep_last=0)
    disk = CountingDisk()
    save_new(folder, disk, new, settings)
    return len(disk.calls)


def check_old_or_new(folder: Path, old: int) -> str:
    """Load what is there now, check that it is one of the two states, whole, and that the next run cleans up."""
    with make_manager(folder, keep_last=0) as manager:
        live = blank(make_state(0))
        loaded = manager.load("latest", live)
        found = "old" if same(live, make_state(old)) else "new"
        assert found == "old" or same(live, make_state(77))
        assert loaded.values == {"step": loaded.step}
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".") and path.name != ".lock"]
        manager.save(99, make_state(99), {"step": 99})
        assert manager.load("latest", live).step == 99 and same(live, make_state(99))
    return found


@pytest.mark.parametrize("kind", [CrashingDisk, PowerLossDisk])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_crash_at_every_write_sync_and_rename_leaves_the_old_or_the_new_state(tmp_path, kind, scenario):
    steps, new, settings = SCENARIOS[scenario]
    outcomes = []
    for at in range(1, count_calls(tmp_path / "count", steps, new, settings) + 1):
        folder = tmp_path / str(at)
        save_steps(folder, *steps, keep_last=0)
        with pytest.raises(Crash):
            save_new(folder, kind(at), new, settings)
        outcomes.append(check_old_or_new(folder, steps[-1]))
    assert outcomes == sorted(outcomes, reverse=True), "once the new state was there it went away again"
    assert outcomes[0] == "old"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_save_that_has_returned_survives_a_power_failure(tmp_path, scenario):
    steps, new, settings = SCENARIOS[scenario]
    save_steps(tmp_path, *steps, keep_last=0)
    disk = PowerLossDisk()
    save_new(tmp_path, disk, new, settings)
    disk.lose()
    assert check_old_or_new(tmp_path, steps[-1]) == "new"


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.long)])
def test_kill_9_at_any_point_of_a_save_leaves_the_old_or_the_new_state(every, tmp_path):
    steps, new, settings = SCENARIOS["a new step, after which the old one is deleted"]
    n_calls = count_calls(tmp_path / "count", steps, new, settings)
    folders = {at: tmp_path / str(at) for at in [*range(1, n_calls, every), n_calls]}
    for folder in folders.values():
        save_steps(folder, *steps, keep_last=0)
    tried = [f"{at}:{folder}" for at, folder in folders.items()]
    words = [sys.executable, "-m", "tests.train.checkpoint.kill_work", str(new), *tried]
    subprocess.run(words, check=True, timeout=100)
    assert {check_old_or_new(folder, steps[-1]) for folder in folders.values()} == {"old", "new"}


def test_a_crash_while_cleaning_up_after_a_crash_loses_nothing(tmp_path):
    """The replaced checkpoint is aside and the new one not yet in place: then the clean-up itself is stopped."""
    steps, new, settings = SCENARIOS["the only step again"]
    disk = CountingDisk()
    save_steps(tmp_path / "count", *steps)
    save_new(tmp_path / "count", disk, new, settings)
    aside = disk.calls.index("rename") + 2
    for at in range(1, 10):
        folder = tmp_path / str(at)
        save_steps(folder, *steps)
        with pytest.raises(Crash):
            save_new(folder, CrashingDisk(aside), new, settings)
        try:
            make_manager(folder, PowerLossDisk(at)).close()
            done = True
        except Crash:
            done = False
        assert check_old_or_new(folder, steps[-1]) == "old"
        if done:
            break
    else:
        pytest.fail("the clean-up did not come to an end")


def test_every_change_on_disk_is_one_that_a_crash_was_tried_at(tmp_path):
    """The save really goes through the layer that the tests stop: all kinds of calls are seen."""
    disk = CountingDisk()
    save_steps(tmp_path, 1)
    save_new(tmp_path, disk, 2, {"keep_last": 1})
    assert set(disk.calls) == {
        "make_folder",
        "create",
        "write",
        "sync",
        "sync_folder",
        "rename",
        "remove_file",
        "remove_folder",
    }

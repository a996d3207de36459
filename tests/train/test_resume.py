"""Killed at any point and started again, a run gives the same numbers, bit for bit, as if nothing had happened."""

import random
import shutil
import time
from unittest import mock

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError, DataError
from monograph.run import train
from monograph.train.adamw import AdamW
from monograph.train.config import TrainingConfig
from monograph.train.state import Position, check_global_batch, collect_values
from tests.kit.runs import differing, find_steps, read_exact, read_records, read_step, read_values, tiny_run
from tests.train.processes import KILLED, WriteFailures, kill, run, start, wait_until

STEPS = 11
CHANGES = {
    "training.steps": STEPS,
    "training.global_batch_size": 4,
    "checkpoint.interval": 3,
    "checkpoint.keep_last": 2,
    "validator.interval": 4,
    "validator.samples": 2,
}


def make_run(folder, **changes):
    dotted = {name.replace("__", "."): value for name, value in changes.items()}
    return tiny_run(folder, CHANGES | dotted, model="deepseek_v3")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    assert run(make_run(folder)) == 0
    assert [record["step"] for record in read_records(folder) if "loss" in record] == list(range(1, STEPS + 1))
    return folder


def assert_equal_to_unbroken(folder, unbroken):
    assert read_exact(folder) == read_exact(unbroken)
    assert differing(read_step(folder, STEPS), read_step(unbroken, STEPS)) == []
    assert read_values(folder, STEPS) == read_values(unbroken, STEPS)
    assert find_steps(folder) == find_steps(unbroken)
    assert not [path.name for path in (folder / "checkpoints").glob(".*") if path.name != ".lock"]


@pytest.mark.parametrize(
    "async_save",
    [
        pytest.param(False, id="saving in turn", marks=pytest.mark.long),
        pytest.param(True, id="saving in the background"),
    ],
)
def test_a_run_killed_again_and_again_ends_with_the_bits_of_the_unbroken_one(tmp_path, unbroken, async_save):
    folder, chance, codes = tmp_path / "run", random.Random(7), []
    config = make_run(folder, checkpoint__load="auto", checkpoint__async_save=async_save)
    for _ in range(3):
        process = start(config)
        saved = max([0, *find_steps(folder)])
        target = min(STEPS - 3, saved + chance.randint(3, 5))
        wait_until(lambda target=target: reached(folder, target), process)
        time.sleep(chance.uniform(0, 0.02))
        codes.append(kill(process))
    assert codes == [KILLED] * 3
    assert run(config) == 0
    assert_equal_to_unbroken(folder, unbroken)


def reached(folder, step):
    try:
        return any(record["step"] == step for record in read_records(folder))
    except (FileNotFoundError, ValueError):  # not there yet, or caught in the middle of a line
        return False


KILLS_INSIDE_A_SAVE = {
    "in the first tensor": WriteFailures("write", 2, "half", commits=1),
    "half of the tensors are written": WriteFailures("write", 60, "half", commits=1),
    "nothing is durable yet": WriteFailures("sync", 1, "before", commits=1),
    "everything is written but not committed": WriteFailures("rename", 1, "before", commits=1),
    "just committed": WriteFailures("rename", 1, "after", commits=1),
    "while an older one is deleted": WriteFailures("remove_file", 1, "after"),
}


SHOWN = ("half of the tensors are written",)


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(trouble, id=name, marks=[] if name in SHOWN else pytest.mark.long)
        for name, trouble in KILLS_INSIDE_A_SAVE.items()
    ],
)
def test_a_kill_inside_a_save_loses_nothing_that_was_committed(tmp_path, unbroken, trouble):
    folder = tmp_path / "run"
    assert run(make_run(folder), trouble) == KILLED
    assert find_steps(folder)[0] == (6 if trouble.method == "remove_file" else 3), "one was committed before"
    assert len([record for record in read_records(folder) if "loss" in record]) < STEPS
    assert run(make_run(folder, checkpoint__load="latest")) == 0
    assert_equal_to_unbroken(folder, unbroken)


@pytest.mark.long
def test_a_kill_before_the_first_checkpoint_starts_from_scratch_with_auto(tmp_path, unbroken):
    folder = tmp_path / "run"
    assert run(make_run(folder), WriteFailures("write", 1)) == KILLED
    assert find_steps(folder) == []
    assert run(make_run(folder, checkpoint__load="auto")) == 0
    assert_equal_to_unbroken(folder, unbroken)


def test_training_goes_on_while_a_slow_save_is_under_way_and_a_kill_then_is_harmless(tmp_path, unbroken):
    folder = tmp_path / "run"
    process = start(make_run(folder, checkpoint__async_save=True), WriteFailures("sync", seconds=1.0))
    wait_until(lambda: reached(folder, 5), process)
    assert find_steps(folder) == [], "step 3 is still being written while step 5 is done"
    wait_until(lambda: find_steps(folder) == [3], process)
    assert kill(process) == KILLED
    assert run(make_run(folder, checkpoint__load="latest", checkpoint__async_save=True)) == 0
    assert_equal_to_unbroken(folder, unbroken)


def test_a_damaged_last_checkpoint_is_passed_over(tmp_path, unbroken):
    folder = tmp_path / "run"
    process = start(make_run(folder))
    wait_until(lambda: reached(folder, 8), process)
    kill(process)
    victim = next((folder / "checkpoints" / f"step-{max(find_steps(folder)):08d}").glob("*.safetensors"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    assert run(make_run(folder, checkpoint__load="latest")) == 0
    assert_equal_to_unbroken(folder, unbroken)


@pytest.mark.long
def test_a_run_continues_from_a_step_number_and_from_a_path(tmp_path, unbroken):
    whole = tmp_path / "whole"
    shutil.copytree(unbroken, whole)
    step = find_steps(whole)[0]
    assert step < STEPS
    assert run(make_run(whole, checkpoint__load=str(step))) == 0
    assert_equal_to_unbroken(whole, unbroken)
    assert (whole / "metrics.jsonl.1").read_text() == (unbroken / "metrics.jsonl").read_text()
    later = [each for each in find_steps(unbroken) if each > step]
    kept = sorted((whole / "checkpoints.1").iterdir())
    assert [path.name for path in kept] == [f"step-{each:08d}" for each in later], "what came after is set aside"
    assert (kept[0] / "manifest.json").read_bytes() == (
        unbroken / "checkpoints" / kept[0].name / "manifest.json"
    ).read_bytes()
    elsewhere = tmp_path / "elsewhere"
    assert run(make_run(elsewhere, checkpoint__load=str(unbroken / "checkpoints" / f"step-{step:08d}"))) == 0
    assert differing(read_step(elsewhere, STEPS), read_step(unbroken, STEPS)) == []
    assert read_exact(elsewhere) == [record for record in read_exact(unbroken) if record["step"] > step]


def test_a_finished_run_has_nothing_left_to_do(tmp_path, unbroken):
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    summary = train(make_run(folder, checkpoint__load="latest"))
    assert summary.steps == STEPS and summary.first == {}
    assert_equal_to_unbroken(folder, unbroken)


def test_weights_alone_start_a_new_run_and_the_earlier_numbers_stay(tmp_path, unbroken):
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    train(make_run(folder, training__steps=2, checkpoint__load="latest", checkpoint__load_model_only=True))
    first, scratch = read_records(folder)[0], read_records(unbroken)[0]
    assert first["step"] == 1 and first["cursor"] == scratch["cursor"] and first["lr"] == scratch["lr"]
    assert first["loss"] < scratch["loss"] - 0.1, "the weights are trained ones"
    assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == (unbroken / "metrics.jsonl").read_text()


def test_resuming_on_other_data_is_refused(tmp_path, unbroken):
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    with pytest.raises((DataError, CheckpointError), match="seed"):
        train(make_run(folder, debug__seed=43, checkpoint__load="latest"))


def test_latest_without_any_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="no intact checkpoint"):
        train(make_run(tmp_path / "run", checkpoint__load="latest"))


def make_quick_run(folder, **changes):
    return make_run(folder, validator__interval=0, **changes)


def test_random_numbers_do_not_depend_on_what_the_process_drew_before(tmp_path):
    for name in ("one", "two"):
        torch.rand(len(name))
        train(make_quick_run(tmp_path / name, training__steps=1))
    assert differing(read_step(tmp_path / "one", 1), read_step(tmp_path / "two", 1)) == []


@pytest.mark.long
def test_random_numbers_go_on_after_a_resume_where_they_had_stopped(tmp_path, monkeypatch):
    """Nothing in these models draws; here every update does, as dropout would."""
    drawn = []
    update = AdamW.step

    def draw(self, *args, **kwargs):
        drawn.append(torch.rand(1).item())
        return update(self, *args, **kwargs)

    monkeypatch.setattr(AdamW, "step", draw)
    train(make_quick_run(tmp_path / "whole", training__steps=4))
    whole = [*drawn]
    drawn.clear()
    train(make_quick_run(tmp_path / "halves", training__steps=2))
    torch.rand(7)
    train(make_quick_run(tmp_path / "halves", training__steps=4, checkpoint__load="latest"))
    assert drawn == whole and len({*whole}) == 4


def test_a_global_batch_that_would_change_with_the_ranks_is_refused_unless_it_is_written(tmp_path):
    position, data, plan = Position(step=3), mock.Mock(), mock.Mock()
    data.revisions.found = {}
    data.fingerprint.return_value, plan.to_json.return_value = "same", {}
    values = collect_values(position, data, tiny_run(tmp_path), plan, global_batch=8)
    check_global_batch(values, TrainingConfig(), now=8)
    check_global_batch(values, TrainingConfig(global_batch_size=4), now=4)
    check_global_batch({}, TrainingConfig(), now=4)
    with pytest.raises(ConfigError, match=r"--training\.global_batch_size 8 keeps it"):
        check_global_batch(values, TrainingConfig(), now=4)

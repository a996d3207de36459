"""A checkpoint that its run deletes while another process reads it: it was opened first, or a newer one is read."""

import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch

from monograph.cli import main
from monograph.generate.load import load_model, open_reader
from monograph.train.checkpoint import choose, reader, tensor_file
from monograph.train.checkpoint.hf_export import export_hf
from monograph.train.checkpoint.manifest_file import GoneError
from monograph.train.checkpoint.model_source import open_source
from monograph.train.checkpoint.store import LOOKS
from monograph.train.checkpoint.verify import verify_held
from tests.kit.pretrained import write_texts
from tests.train.checkpoint.disks import blank, make_manager, make_state, same, save_steps
from tests.train.checkpoint.refusing_reads import RefusingReads, refusing

TRAIN = shlex.split("""
    llama3_debugmodel --training.steps 3 --compile.mode eager --debug.device cpu --dataloader.dataset texts
    --training.seq_len 32 --training.local_batch_size 2 --validator.interval 0 --metrics.progress off
    --job.dump_folder run --model.n_layers 1 --checkpoint.interval 1 --checkpoint.keep_last 0
""")


class AdvancingRun(RefusingReads):
    """At the chosen reads, the run writes its next checkpoint and deletes the older ones, as with keep_last 1."""

    def __init__(self, folder: Path, *, first: int = 0, last: int = 0) -> None:
        super().__init__(folder, first=first, last=last)
        self.checkpoints = folder if (folder / "step-00000001").exists() else folder / "checkpoints"
        self.stash = folder.with_name("stash")
        self.stash.mkdir(exist_ok=True)
        for path in sorted(self.checkpoints.glob("step-*"))[1:]:
            path.rename(self.stash / path.name)

    def see(self, path: str) -> None:
        if path.startswith(self.folder) and not path.endswith(".lock"):
            self.count += 1
            if self.count in self.refused:
                self.advance()

    def advance(self) -> None:
        older, coming = list(self.checkpoints.glob("step-*")), sorted(self.stash.iterdir())
        if coming:
            coming[0].rename(self.checkpoints / coming[0].name)
            for path in older:
                trash = path.with_name(f".trash-{path.name}-00000000")
                path.rename(trash)
                for file in [*trash.iterdir()]:
                    file.unlink()
                trash.rmdir()


@pytest.fixture
def seen_reads(monkeypatch):
    """Reads of safetensors are made in Rust, which no audit hook sees: count them as well."""
    real = tensor_file.safe_open

    def seen(path, **kwargs):
        with open(os.fspath(path), "rb"):
            return real(path, **kwargs)

    monkeypatch.setattr(tensor_file, "safe_open", seen)
    monkeypatch.setattr(reader, "safe_open", seen)


def copy_of(folder: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place / "run")
    return place / "run"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """The folder of a run of three steps, all of whose checkpoints were kept."""
    place = tmp_path_factory.mktemp("live")
    write_texts(place / "texts")
    before = os.getcwd()
    os.chdir(place)
    try:
        assert main(["train", *TRAIN]) == 0
    finally:
        os.chdir(before)
    return place / "run"


def for_every_read(folder, place, act):
    """Let the run advance at each read in turn; `act` uses the folder and returns the step that it has read."""
    counting = AdvancingRun(copy_of(folder, place))
    with refusing(counting):
        assert act(Path(counting.folder)) == 1
    assert counting.count > 3
    for at in range(1, counting.count + 1):
        run = AdvancingRun(copy_of(folder, place), first=at, last=at)
        with refusing(run):
            assert act(Path(run.folder)) in (1, 2), f"the run advances at read {at}"


def test_a_load_reads_a_whole_checkpoint_wherever_the_run_deletes_it(tmp_path, seen_reads):
    save_steps(tmp_path / "kept", 1, 2, 3)

    def load(folder):
        live = blank(make_state(0))
        with make_manager(tmp_path / "own", enabled=False) as manager:
            manager.load(folder, live, model_only=True)
        return next(step for step in (1, 2) if same_weights(live, make_state(step)))

    for_every_read(tmp_path / "kept", tmp_path / "copies", load)


def same_weights(live, saved):
    names = [name for name in saved if name.startswith("model/")]
    return same({name: live[name] for name in names}, {name: saved[name] for name in names})


def test_generating_and_exporting_work_wherever_the_run_deletes_what_they_read(run_folder, tmp_path, seen_reads):
    def generate(folder):
        return int(load_model(open_source(str(folder)), torch.device("cpu"), length=8).path.name.removeprefix("step-"))

    def export(folder):
        shutil.rmtree(tmp_path / "hf", ignore_errors=True)
        assert main(["hf", "export", str(folder), str(tmp_path / "hf")]) == 0
        return 1

    for_every_read(run_folder, tmp_path / "copies", generate)
    for_every_read(run_folder, tmp_path / "copies", export)


def test_a_folder_of_checkpoints_alone_is_read_while_its_run_deletes_them(run_folder, tmp_path, seen_reads):
    def read(folder):
        path, opened = open_reader(open_source(str(folder)))
        assert opened.manifest.step == int(path.name.removeprefix("step-"))
        return opened.manifest.step

    for_every_read(run_folder / "checkpoints", tmp_path / "copies", read)


def test_a_verified_checkpoint_is_exported_after_it_was_deleted(run_folder, tmp_path):
    folder = copy_of(run_folder, tmp_path / "copy")
    verified = verify_held(folder / "checkpoints" / "step-00000003")
    shutil.rmtree(folder)
    export_hf(verified, tmp_path / "late")
    export_hf(run_folder / "checkpoints" / "step-00000003", tmp_path / "before")
    assert (tmp_path / "late" / "model.safetensors").read_bytes() == (
        tmp_path / "before" / "model.safetensors"
    ).read_bytes()


def test_a_step_that_was_named_and_has_gone_is_an_error_that_says_so(tmp_path):
    save_steps(tmp_path / "kept", 1, 2)
    counting = AdvancingRun(copy_of(tmp_path / "kept", tmp_path / "copies"))
    step = Path(counting.folder) / "step-00000001"
    with make_manager(tmp_path / "own", enabled=False) as manager, refusing(counting):
        manager.load(step, blank(make_state(0)), model_only=True)
    run = AdvancingRun(copy_of(tmp_path / "kept", tmp_path / "copies"), first=1, last=1)
    with (
        make_manager(tmp_path / "own", enabled=False) as manager,
        refusing(run),
        pytest.raises(GoneError, match=r"step-00000001 was deleted while it was read\nwhy: .*keep_last.*\ndo: "),
    ):
        manager.load(step, blank(make_state(0)), model_only=True)


def test_a_run_that_is_faster_than_its_reader_ends_in_words(tmp_path, monkeypatch):
    """Every look finds a checkpoint, which is deleted before it is opened."""
    save_steps(tmp_path / "kept", 1)
    looks = []

    def delete(path, ranks):
        looks.append(path)
        raise GoneError(path)

    monkeypatch.setattr(choose, "verify_held", delete)
    with make_manager(tmp_path / "own", enabled=False) as manager, pytest.raises(GoneError):
        manager.load(tmp_path / "kept", blank(make_state(0)), model_only=True)
    assert len(looks) == LOOKS


def test_files_of_a_held_checkpoint_are_closed_with_it(tmp_path):
    save_steps(tmp_path / "kept", 1)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3 * LOOKS):
        verify_held(tmp_path / "kept" / "step-00000001")
    assert len(os.listdir("/proc/self/fd")) == before

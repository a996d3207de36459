"""Disks without room, by a limit of the system on the size of files: each command names the file that found none."""

import resource
import shlex
import signal
from contextlib import contextmanager

import pytest

from monograph.cli import main
from tests.kit.pretrained import write_pretrained, write_texts
from tests.watch.run_folders import make_run


@contextmanager
def files_of_at_most(size):
    """Let no file of this process grow beyond a size: the system refuses the rest, as a full disk does."""
    before, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, action)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with texts, a model of Hugging Face, its import, and a run."""
    folder = tmp_path_factory.mktemp("full")
    write_texts(folder / "texts")
    write_pretrained(folder / "theirs")
    assert main(["hf", "import", str(folder / "theirs"), str(folder / "ours")]) == 0
    make_run(folder / "run")
    return folder


COMMANDS = {
    "export": ("hf export ours OUT", "model.safetensors"),
    "import": ("hf import theirs OUT", "import-00001.safetensors"),
    "pack": ("data pack texts OUT --tokenizer.path theirs", ".OUT.writing-"),
    "watch": ("watch run --out OUT.html", "OUT.html"),
    "launch": ("launch llama3_debugmodel --on torchrun --nodes 1 --gpus_per_node 1 --out OUT.sh", "OUT.sh"),
    "inspect": (
        "inspect llama3_debugmodel --out OUT --model.n_layers 1 --training.seq_len 16 --training.local_batch_size 1",
        "OUT/",
    ),
}


@pytest.mark.parametrize("size", [0, 100])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_full_disk_names_the_file_of_every_command(place, monkeypatch, capsys, name, size):
    monkeypatch.chdir(place)
    monkeypatch.setattr("monograph.cli.drop_output", lambda: None)  # standard output has no number here
    words, file = (text.replace("OUT", f"out-{name}-{size}") for text in COMMANDS[name])
    with files_of_at_most(size):
        code = main(shlex.split(words))
    said = capsys.readouterr().err.split("error: ")[-1]
    assert code in (1, 2) and file in said and "File too large" in said, said

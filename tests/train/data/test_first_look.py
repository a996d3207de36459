"""Data that cannot be read is refused by its beginning, before torch is imported, in words that fit it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.errors import DataError
from monograph.machine import gpu_files
from monograph.train.data.first_look import check_beginning
from tests.train.data.test_files import write_parquet

ROOT = Path(__file__).parent.parent.parent.parent
ROW = {"text": "a document of some words"}
WRONG = {
    "body.jsonl": (b'{"body": "a text"}\n', "--dataloader.text_field body"),
    "chat.jsonl": (b'{"messages": [{"role": "user", "content": "hi"}]}\n', "a conversation is not one text"),
    "list.jsonl": (b'["a"]\n', "expected an object"),
    "cut.jsonl": (b'{"text": "a', "not JSON"),
    "empty.txt": (b"", "the dataset is empty"),
    "empty.jsonl": (b"", "the dataset is empty"),
    "short.txt": (b"too short", "shorter than one sequence"),
    "binary.txt": (bytes(range(256)), "a binary file"),
    "utf16.txt": ("some words".encode("utf-16"), "iconv -f UTF-16"),
    "latin1.txt": ("d\u00e9j\u00e0 vu, a text".encode("latin-1"), "iconv -f LATIN1"),
    "words.csv": (b"text\nhello\n", "words.csv"),
    "words.txt.gz": (b"not gzip", "words.txt.gz"),
    "words.parquet": (b"PAR1", "words.parquet"),
}


def write(folder, name):
    content, wanted = WRONG[name]
    (folder / name).write_bytes(content)
    return folder / name, wanted


def look(path):
    check_beginning(path, text_field="text", seq_len=64)


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_cannot_be_read_is_refused_by_its_beginning(name, tmp_path):
    path, wanted = write(tmp_path, name)
    with pytest.raises(DataError) as error:
        look(path)
    assert wanted in str(error.value) and path.name in str(error.value)


def test_good_data_passes_however_its_last_bytes_are_cut(tmp_path):
    (tmp_path / "a.jsonl").write_text((json.dumps(ROW) + "\n") * 20)
    (tmp_path / "b.txt").write_bytes("\u00e9".encode() * 40_000)  # 64 KiB end within a character
    (tmp_path / "odd.txt").write_bytes(b"x" + "\u00e9".encode() * 40_000)
    write_parquet(tmp_path / "c.parquet", text=["one"] * 20)
    for path in (tmp_path, *tmp_path.iterdir()):
        check_beginning(path, text_field="text", seq_len=8)


def test_links_and_empty_folders_are_named(tmp_path):
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(DataError, match="a link that leads nowhere") as error:
        look(tmp_path / "dangling")
    assert "did you mean" not in str(error.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="no files to read"):
        look(tmp_path / "folder")


@pytest.mark.parametrize("flags", ["--dataloader.dataset chat.jsonl", "--debug.device cuda"])
def test_train_refuses_it_before_torch_is_imported(flags, tmp_path):
    write(tmp_path, "chat.jsonl")
    code = (
        "import sys; from pathlib import Path; from monograph.cli import main\n"
        "from monograph.machine import gpu_files\n"
        "gpu_files.DEVICES = Path('.')\n"
        f"code = main({['train', 'llama3_debugmodel', *flags.split()]!r})\n"
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True
    )
    assert done.returncode == 2, done.stderr.decode()


def test_a_gpu_is_missing_only_where_no_device_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_files, "DEVICES", tmp_path)
    gpu_files.check_gpu_files("auto")
    with pytest.raises(gpu_files.ConfigError, match=r"debug\.device is cuda"):
        gpu_files.check_gpu_files("cuda")
    (tmp_path / "nvidia0").touch()
    gpu_files.check_gpu_files("cuda")

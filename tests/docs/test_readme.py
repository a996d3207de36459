"""The session of the README can be typed as it stands: what a line reads, a line above it has made."""

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.test_guides import ROOT, Server

README = (ROOT / "README.md").read_text(encoding="utf-8")
FILE = re.compile(r"[\w.-]*/[\w./-]*|[\w.-]+\.(json|html|key|md|txt|jsonl)")
FOLDERS_WITHOUT_A_SLASH = {"report": 2, "artifact": 1}
"""Commands of two words whose arguments are folders -> how many of them."""
EXIT_CODES = {"bisect": 1, "tune": 2}
"""bisect finds the difference that it is shown, tune needs a GPU."""
SMALL = "--training.steps 2 --training.seq_len 64 --model.n_layers 2"


def find_session():
    """The lines of the blocks under "Using it", without their comments."""
    (section,) = re.findall(r"^## Using it$.*?(?=^## )", README, flags=re.M | re.S)
    blocks = re.findall(r"^```\n(.*?)^```", section, flags=re.M | re.S)
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


def find_made(words):
    """Files and folders that a line makes, without the slash at the end of their names."""
    made = [words[index + 1] for index, word in enumerate(words) if word in ("--out", "--profile", "mkdir", ">")]
    if words[1:3] in (["data", "pack"], ["hf", "export"], ["hf", "import"]):
        made.append(words[4])
    if words[1] == "train":
        name = words[words.index("--model.from") + 1] if "--model.from" in words else words[2].rpartition(":")[2]
        made.append(f"outputs/{name}")
    return {each.rstrip("/") for each in made}


def find_read(words):
    """Files and folders that a line reads."""
    named = [word for word in words if FILE.fullmatch(word) and not word.startswith("/dev/")]
    named += words[3 : 3 + FOLDERS_WITHOUT_A_SLASH.get(words[1], 0)]
    return [word for word in named if word.rstrip("/") not in find_made(words)]


def test_every_file_that_the_session_reads_is_made_by_a_line_above_or_in_the_repository():
    made, missing = set(), []
    for line in find_session():
        words = shlex.split(re.sub(r"[();]", " ", line))
        for word in find_read(words):
            path = Path(word)
            if not {str(each) for each in (path, *path.parents)} & made and not list(ROOT.glob(word)):
                missing.append(f"{word}: {line}")
        made |= find_made(words)
    assert missing == []
    assert {"texts", "exported", "outputs/llama3_debugmodel", "inspected", "artifact.key"} <= made


def shorten(line):
    """The same line with sizes that take seconds."""
    words = line.split()
    if words[:2] == ["monograph", "train"] and "--help" not in words:
        is_longer = "--checkpoint.load" in words
        flags = "--training.steps 5 --lr_scheduler.on_extend redecay" if is_longer else "--training.steps 3"
        return f"{re.sub(r' --training.steps [0-9]+', '', line)} {flags} --training.seq_len 64 --validator.interval 0"
    if words[1] in ("compare", "bisect"):
        return re.sub(r'(llama3_debugmodel[^"]*)"', rf'\1 {SMALL}"', line)
    if words[1] in ("inspect", "precompile", "bench", "verify") or words[1:3] == ["artifact", "check"]:
        return f"{line} --training.seq_len 64" + (" --steps 2" if words[1] == "bench" else "")
    return line


@pytest.mark.long
def test_the_session_runs_from_its_first_line_to_its_last(tmp_path):
    for name in ("README.md", "docs", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    server = Server()
    try:
        for line in find_session():
            is_slow = line.startswith(("monograph plan", "monograph machine measure"))
            answer = server.ask("parse" if is_slow else "console", shorten(line), tmp_path)
            expected = EXIT_CODES.get(line.split()[1], 0)
            assert answer["code"] == expected, f"{shorten(line)}\n{answer['output']}"
    finally:
        server.process.stdin.close()
        server.process.wait(timeout=60)

"""Every block of the guides runs, in the order of its page, in a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import RUN, Block, find_fault, find_missing_output, is_excerpt, read_blocks

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / "docs" / "index.md",
    *sorted((ROOT / "docs").glob("guides/*.md")),
    *sorted(ROOT.glob("docs/concepts/*.md")),
]


EXAMPLES = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))]


def is_run(block):
    if block.not_run or any(is_excerpt(block, text) for text in EXAMPLES):
        return False
    return block.language in RUN or bool(block.title)


SHORT = [page for page in PAGES if any(is_run(block) for block in read_blocks(page))]
LONG = [page for page in SHORT if any(is_run(block) and block.is_long for block in read_blocks(page))]


class Server:
    """A process that has imported torch and forks for every command."""

    def __init__(self):
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "140", "PATH": path}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.server"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, kind, text, folder):
        self.process.stdin.write(json.dumps({"kind": kind, "text": text, "folder": str(folder)}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.process.stdin.close()
    server.process.wait(timeout=60)


def run_block(server, block, folder, where):
    """Run one block; what a long one needs is checked without running it when `where` leaves it out."""
    if block.title:
        path = folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
    elif block.language == "python":
        answer = server.ask("python", block.text, folder)
        assert answer["code"] == block.exit_code, f"{where}\n{answer['output']}"
    else:
        for command in block.find_commands():
            answer = server.ask("console", command.text, folder)
            assert answer["code"] == block.exit_code, f"{where}: {command.text}\n{answer['output']}"
            missing = find_missing_output(command.output, answer["output"])
            assert not missing, f"{where}: {command.text}\ndoes not print: {missing}\nbut\n{answer['output']}"


def read_commands(server, block, folder, where):
    """A long block in a short test: its commands are ones that the command line understands."""
    for command in block.find_commands() if block.language in ("console", "bash") else []:
        if command.text.startswith("monograph "):
            answer = server.ask("parse", command.text, folder)
            assert answer["code"] == 0, f"{where}: {command.text}\n{answer['output']}"


def name_page(page):
    return page.stem


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_every_block_of_a_guide_is_run_or_says_why_not(page):
    assert [fault for block in read_blocks(page) if (fault := find_fault(block))] == []


@pytest.mark.long
@pytest.mark.parametrize("page", SHORT, ids=name_page)
def test_the_short_blocks_of_a_guide_run(page, server, tmp_path):
    for block in filter(is_run, read_blocks(page)):
        where = f"{page.name}:{block.line}"
        if block.is_long and not block.title:
            read_commands(server, block, tmp_path, where)
        else:
            run_block(server, block, tmp_path, where)


@pytest.mark.long
@pytest.mark.parametrize("page", LONG, ids=name_page)
def test_all_blocks_of_a_guide_run(page, server, tmp_path):
    for block in filter(is_run, read_blocks(page)):
        run_block(server, block, tmp_path, f"{page.name}:{block.line}")


def test_a_command_that_fails_and_output_that_is_not_printed_are_noticed(server, tmp_path):
    fails = Block("console", "", 1, text="$ false\n")
    with pytest.raises(AssertionError, match="false"):
        run_block(server, fails, tmp_path, "page")
    lies = Block("console", "", 1, text="$ echo step 7 of 9\nstep 1 of 2\n...\ntraining finished\n")
    with pytest.raises(AssertionError, match="does not print: training finished"):
        run_block(server, lies, tmp_path, "page")
    raises = Block("python", "", 1, text="raise ValueError\n")
    with pytest.raises(AssertionError, match="ValueError"):
        run_block(server, raises, tmp_path, "page")


def test_a_block_without_a_reason_to_be_left_out_is_a_fault(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nls\n```\n\n<!-- not run: needs a cluster -->\n```bash\nsrun\n```\n"
        "\n<!-- long -->\n```console\n$ ls\n```\n"
    )
    first, second, third = read_blocks(page)
    assert "line 1" in find_fault(first) and not find_fault(second)
    assert second.not_run == "needs a cluster" and third.is_long


def test_an_excerpt_is_part_of_its_program_line_by_line():
    program = "import os\n\n\ndef f(x):\n    y = x\n    print(y)\n    return y\n"
    assert is_excerpt(Block("python", "", 1, text="def f(x):\n    ...\n    print(y)\n    return y\n"), program)
    assert not is_excerpt(Block("python", "", 1, text="def f(x):\n    print(x)\n    return y\n"), program)
    assert not is_excerpt(Block("python", "", 1, text="import os\n"), program)


def test_numbers_of_a_shown_output_may_differ_and_words_may_not():
    assert not find_missing_output(("step 1/4  loss 6.31",), "08:00 hello\nstep 3/4   loss 5.2\n")
    assert find_missing_output(("b", "a"), "a\nb\n") == "a"

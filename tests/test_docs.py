"""What the documents say is true: their commands exist, their links lead somewhere, the tour runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.cli import make_options, place_leading
from monograph.commands.request import read_request
from monograph.commands.table import COMMANDS, find_command
from monograph.config.configurable import BaseConfig
from monograph.config.overrides import apply_overrides, split_flags
from monograph.passes.order import ORDER

ROOT = Path(__file__).parent.parent
PAGES = sorted(path for folder in (".", "docs", "docs/decisions") for path in (ROOT / folder).glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def find_commands(text):
    """The `monograph ...` commands of a page's code blocks, without comments; a torchrun's too."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    found = (re.match(r"(?:torchrun .* -m )?monograph (.*)", line) for line in lines)
    return [match[1] for match in found if match]


def check_command(words):
    """Read a command as the command line would, up to the point where it would start."""
    command, rest = find_command(words)
    rest = [word for word in rest if word != "--help"]
    if command.takes_recipe:
        read_request(place_leading(command, rest), make_options(command))
    elif command.arguments is not None:
        count = len(command.positional)  # files that a reader would have
        apply_overrides(command.arguments(), split_flags(rest[count:]))
        assert not any(word.startswith("--") for word in rest[:count])
    else:
        assert not rest


@pytest.fixture
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT)


def test_every_command_in_the_readme_is_one_that_the_command_line_understands(in_the_repository):
    commands = find_commands(README)
    assert len(commands) >= 12
    for command in commands:
        check_command(shlex.split(command))


def test_the_readme_shows_every_command_there_is():
    shown = [f"{line} " for line in find_commands(README)]
    assert [each.name for each in COMMANDS if not any(line.startswith(f"{each.name} ") for line in shown)] == []


def test_flags_named_in_prose_exist(in_the_repository):
    prose = README + "".join(
        (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("running", "status")
    )
    flags = [flag for flag in re.findall(r"`(--[a-z_.]+(?: [a-z]+)?)`", prose) if flag != "--section.field value"]
    assert "--compile.mode layer" in flags and len(flags) >= 5
    for flag in flags:
        words = shlex.split(flag)
        value = [] if len(words) > 1 else ["2"]
        read_request(["qwen3_debugmodel_moe", *words, *value], BaseConfig())


def test_every_make_target_in_a_page_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        code = re.findall(r"^```\w*\n(.*?)^```|`([^`\n]+)`", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", "\n".join(" ".join(part) for part in code)):
            assert target.split()[0] in targets, f"{page.name}: make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_readme_shows_the_session_as_the_program_prints_it():
    for text in ("time to the first step", "training finished", "held-out loss", "try next"):
        source = "\n".join(path.read_text() for path in (ROOT / "monograph" / "train").glob("*.py"))
        assert text in README and text in source


def test_the_slurm_script_runs_a_command_that_exists(in_the_repository):
    script = (ROOT / "examples" / "slurm.sh").read_text()
    subprocess.run(["bash", "-n", ROOT / "examples" / "slurm.sh"], check=True)
    (words,) = re.findall(r"-m monograph (.*?)\s*\"\$@\"", script.replace("\\\n", " "))
    check_command(shlex.split(words.replace('"$RECIPE"', "llama3_8b").replace('"$FOLDER"', "outputs")))


def test_the_tour_of_how_it_works_runs():
    tour = subprocess.run(
        [sys.executable, ROOT / "docs" / "how_it_works.py"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert tour.returncode == 0, tour.stderr
    assert [line[0] for line in tour.stdout.splitlines() if line[0].isdigit()] == ["1", "2", "3", "4", "5", "6"]
    assert "equal those of the unbroken run bit for bit" in tour.stdout


def test_the_readme_counts_the_passes():
    assert f"{len(ORDER)} passes, one file each" in README

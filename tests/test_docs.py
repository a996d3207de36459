"""What the documents say is true: their commands exist, their links lead somewhere, the tour runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.commands.table import COMMANDS
from monograph.config.leaves import find_leaves
from monograph.config.overrides import apply_overrides, split_flags
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from tests.docs.commands import check_command, find_commands

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")


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


def test_flags_named_in_prose_exist():
    prose = README + "".join(path.read_text(encoding="utf-8") for path in PAGES if path.is_relative_to(ROOT / "docs"))
    flags = set(re.findall(r"`(--[a-z_]+\.[a-z_.]*[a-z_](?: [a-z]+)?)`", prose)) - {
        "--section.field value",
        "--model.from",
    }
    assert "--compile.mode layer" in flags and len(flags) >= 30
    config = load_recipe("qwen3_debugmodel_moe")
    fields = {leaf.path for leaf in find_leaves(config)}
    for flag in flags:
        name, _, value = flag.removeprefix("--").partition(" ")
        assert name in fields, flag
        if value:
            apply_overrides(config, split_flags([f"--{name}", value]))


def test_every_make_target_in_a_page_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for page in PAGES:
        code = re.findall(r"^```\w*\n(.*?)^```|`([^`\n]+)`", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for target in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", "\n".join(" ".join(part) for part in code)):
            assert target.split()[0] in targets, f"{page.name}: make {target}"


def test_the_readme_shows_the_session_as_the_program_prints_it():
    for text in ("time to the first step", "training finished", "peak memory", "validation", "perplexity", "try next"):
        source = "\n".join(path.read_text() for path in (ROOT / "monograph" / "train").glob("*.py"))
        assert text in README and text in source


def test_the_page_on_own_data_says_how_to_start_from_trained_weights():
    page = (ROOT / "docs" / "guides" / "train_your_data.md").read_text(encoding="utf-8")
    start = page.split("\n## ")[0]
    assert "--model.from MODEL" in start and "(hugging_face.md#fine-tune-a-model)" in start


@pytest.mark.long
def test_the_tour_of_how_it_works_runs():
    tour = subprocess.run(
        [sys.executable, ROOT / "docs" / "how_it_works.py"], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert tour.returncode == 0, tour.stderr
    assert [line[0] for line in tour.stdout.splitlines() if line[0].isdigit()] == ["1", "2", "3", "4", "5", "6"]
    assert "equal those of the unbroken run bit for bit" in tour.stdout


def test_the_readme_counts_the_passes():
    assert f"{len(ORDER)} passes, one file each" in README

"""The site: every page has its place in the navigation, and the reference follows the code."""

import importlib.util
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml

from docs.generate.api import make_api_page
from docs.generate.commands import make_commands_page
from docs.generate.config_fields import make_config_page
from docs.generate.errors import make_errors_page
from docs.generate.links import find_links, find_page, rewrite_links
from docs.generate.pages import build_pages, expand_nav, find_pictures
from monograph.commands.table import COMMANDS
from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.recipes.catalog import find_recipes

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
OUTSIDE = re.compile(r"<(?:script|link|img|iframe|source)[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
"""What a browser would load from another host when it opens a page."""


def find_nav_pages(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from find_nav_pages(value) if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def generated():
    return build_pages()


def test_the_navigation_has_every_page_once(generated):
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    shown = list(find_nav_pages(expand_nav(settings["nav"])))
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages = written | {path for path in generated if not path.startswith("source/")}
    assert sorted(shown) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page, generated):
    """In the repository; and on the site, for the pages that are on it."""
    written = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*") if path.suffix != ".py"}
    site = {*written, *generated, *find_pictures()}
    for link in find_links(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))):
        assert (ROOT / link).exists() or find_page(link) in generated, link
        assert page.name == "README.md" or find_page(link) in site, f"{link} is not on the site"


def test_every_source_page_is_one_that_a_page_links_to(generated):
    texts = [(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))) for path in ROOT.glob("docs/**/*.md")]
    texts += [
        (path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))) for path in ROOT.glob("benchmarks/**/*.md")
    ]
    texts.append(((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "CONTRIBUTING.md"))
    linked = {find_page(link) for text, path in texts for link in find_links(text, path)}
    assert {path for path in generated if path.startswith("source/")} <= linked


def test_the_reference_names_every_command_and_flag():
    page = make_commands_page()
    for command in COMMANDS:
        assert f"\n## {command.name}\n" in page
        for leaf in find_leaves(command.arguments()) if command.arguments else []:
            assert f"--{leaf.path}<" in page or f">{leaf.path.upper()}<" in page


def test_the_reference_names_every_field_of_every_recipe():
    page = make_config_page()
    paths = {leaf.path for recipe in find_recipes().values() for leaf in find_leaves(recipe())}
    assert len(paths) > 100
    assert [path for path in sorted(paths) if f"<code>--{path}</code>" not in page] == []


def test_the_reference_of_errors_has_classes_with_their_exit_codes():
    page = make_errors_page()
    assert f"| <code>ConfigError</code> | {ConfigError.exit_code} |" in page
    assert "| <code>TrainingFailed</code> | 1 |" in page
    assert "| 75 | Training ended early" in page and "| 130 |" in page


def test_the_api_page_follows_what_the_module_promises():
    module = types.ModuleType("made_up")

    class Engine:
        """An engine."""

        def start(self, speed: int) -> bool:
            """Start it."""

    def drive(
        a_long_name_of_an_argument: int, *, another_long_name: str = "x", and_one_more_of_them: float = 1.0
    ) -> int:
        """Drive somewhere."""

    module.Engine, module.drive, module.hidden = Engine, drive, 1
    module.__all__ = ["Engine", "drive"]
    page = make_api_page(module)
    assert "## Engine" in page and "### Engine.start" in page and "def start(self, speed: int) -> bool" in page
    assert "def drive(\n    a_long_name_of_an_argument: int,\n    *,\n" in page and "Drive somewhere." in page
    assert "hidden" not in page


def test_links_between_files_become_links_between_pages():
    text = "[a](../../monograph/machine/table.py) [b](../decisions/0004-artifacts.md#x) [c](https://x.org)\n```\n[d](e.md)\n```\n"
    assert rewrite_links(text, "docs/guides/running.md") == (
        "[a](../source/monograph/machine/table.py.md) [b](../decisions/0004-artifacts.md#x) [c](https://x.org)\n"
        "```\n[d](e.md)\n```\n"
    )
    assert rewrite_links("[r](../benchmarks/results/a.md)", "docs/status.md") == "[r](results/a.md)"


def test_the_page_of_the_tour_has_every_line_of_its_chapters(generated):
    page = generated["concepts/tour.md"]
    assert re.findall(r"^## (\d)\. ", page, flags=re.M) == ["1", "2", "3", "4", "5", "6"]
    source = (ROOT / "docs" / "how_it_works.py").read_text(encoding="utf-8")
    chapters = re.findall(r"^def chapter_.*?(?=^def |\Z)", source, flags=re.M | re.S)
    for line in [line.strip() for chapter in chapters for line in chapter.splitlines()[2:]]:
        assert line.removeprefix("# ") in page, line


@pytest.mark.long
def test_make_docs_is_strict_clean_in_a_clean_clone(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; `make docs` and `make test-long` install it")
    clone, venv = tmp_path / "clone", Path(sys.prefix)
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    stamps = [word for name in (".installed", ".installed_docs") for word in ("-o", f"{venv}/{name}")]
    built = subprocess.run(
        ["make", "docs", f"VENV={venv}", *stamps],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": f"{clone}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    assert "WARNING" not in built.stderr
    pages = list((clone / "build" / "site").rglob("*.html"))
    assert len(pages) > 40
    assert {tag for page in pages for tag in OUTSIDE.findall(page.read_text(encoding="utf-8"))} == set()
    assert subprocess.run(["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True).stdout == ""

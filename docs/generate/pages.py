"""All pages of the site that are made when it is built, from code or from files outside of docs/."""

from pathlib import Path

from docs.generate.api import make_api_page
from docs.generate.commands import make_commands_page
from docs.generate.config_fields import make_config_page
from docs.generate.errors import make_errors_page
from docs.generate.links import ROOT, find_sources, rewrite_links
from docs.generate.markdown import find_title
from docs.generate.tour import make_tour_page

DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json"}


def build_pages() -> dict[str, str]:
    """Path on the site -> Markdown, with links between pages of the site."""
    pages = {
        "reference/commands.md": make_commands_page(),
        "reference/config.md": make_config_page(),
        "reference/api.md": make_api_page(),
        "reference/errors.md": make_errors_page(),
        "concepts/tour.md": make_tour_page(DOCS / "how_it_works.py"),
        "contributing.md": _read("CONTRIBUTING.md"),
        "decisions/index.md": make_index("Decisions", DECISIONS_INTRO, find_decisions()),
        "results/index.md": make_index("Results", RESULTS_INTRO, find_results()),
    }
    pages |= {f"results/{path.name}": _read(f"benchmarks/results/{path.name}") for path in find_results()}
    return pages | build_source_pages()


def find_pictures() -> dict[str, Path]:
    """Path on the site -> file, of what pages outside of docs/ show."""
    return {f"results/{path.name}": path for path in sorted(RESULTS.iterdir()) if path.suffix in (".png", ".svg")}


DECISIONS_INTRO = "What was decided, why, and what was rejected instead."
RESULTS_INTRO = """What was measured: every page names the machine, the versions and the command. The scripts are in
`benchmarks/`; what is proven by tests and what is not done yet is on [the status page](../status.md)."""


def find_decisions() -> list[Path]:
    """The pages on decisions, in their order."""
    return sorted((DOCS / "decisions").glob("*.md"))


def find_results() -> list[Path]:
    """The pages on measurements, the newest first."""
    return sorted(RESULTS.glob("*.md"), reverse=True)


def make_index(title: str, intro: str, pages: list[Path]) -> str:
    """A page that links to all the others of its folder."""
    entries = [f"- [{find_title(path.read_text(encoding='utf-8'))}]({path.name})" for path in pages]
    return "\n".join((f"# {title}", "", intro, "", *entries, ""))


def expand_nav(nav: list) -> list:
    """The navigation with `folder/` replaced by the pages in it, the index first."""
    folders = {"decisions/": find_decisions(), "results/": find_results()}
    expanded: list = []
    for entry in nav:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(value, list):
            value = expand_nav(value)
        elif value in folders:
            value = [f"{value}index.md", *(f"{value}{path.name}" for path in folders[value])]
        expanded.append({title: value} if title else value)
    return expanded


def build_source_pages() -> dict[str, str]:
    """A page for each source file that some page links to."""
    linked: set[str] = set()
    files = [ROOT / "CONTRIBUTING.md", *RESULTS.glob("*.md"), *DOCS.rglob("*.md")]
    for path in files:
        linked.update(find_sources(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT))))
    return {f"source/{path}.md": make_source_page(path) for path in sorted(linked)}


def make_source_page(path: str) -> str:
    """One file of the repository, as it is."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    return f"# {path}\n\n````{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n````\n"


def _read(path: str) -> str:
    return rewrite_links((ROOT / path).read_text(encoding="utf-8"), path)

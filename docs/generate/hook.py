"""What mkdocs calls while it builds the site (mkdocs.yml, `hooks`)."""

from typing import Any

from mkdocs.structure.files import File

from docs.generate.links import rewrite_links
from docs.generate.pages import build_pages, expand_nav, find_pictures
from docs.generate.search import find_boost

_generated: set[str] = set()


def on_config(config: Any) -> Any:
    """Fill the sections of the navigation that list whole folders."""
    config.nav = expand_nav(config.nav)
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that are made from code, and those that lie outside of docs/, with their pictures."""
    for path, text in build_pages().items():
        _generated.add(path)
        files.append(File.generated(config, path, content=text))
    for path, source in find_pictures().items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages, and rank the page in the search."""
    path = page.file.src_uri
    page.meta.setdefault("search", {"boost": find_boost(path)})
    return markdown if path in _generated else rewrite_links(markdown, f"docs/{path}")

"""The search of the built site, asked in a browser as a reader asks it: guides come before decisions and results."""

import functools
import importlib.util
import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from docs.generate.pages import build_pages
from docs.generate.search import find_boost
from tests.kit.browser import Browser, needs_browser

ROOT = Path(__file__).parent.parent.parent
FIRST = {
    "gradient accumulation": "guides/learning_rate/#gradient-accumulation-and-the-global-batch",
    "best checkpoint": "guides/checkpoints/#the-best-checkpoint",
    "early stopping": "guides/checkpoints/#early-stopping",
    "learning rate": "guides/learning_rate/",
    "out of memory": "guides/out_of_memory/",
    "OOM": "guides/out_of_memory/",
    "multi-node": "guides/nodes_torchrun/",
    "resume": "guides/checkpoints/#save-and-resume",
    "muon": "guides/learning_rate/#muon-sgd-and-other-optimizers",
    "WSD": "guides/learning_rate/#learning-rate-schedules",
    "assistant": "guides/train_your_data/#chat-and-assistant-data",
    "chat": "guides/train_your_data/#chat-and-assistant-data",
    "LoRA": "guides/train_your_data/#chat-and-assistant-data",
    "pipeline": "guides/pipelines/",
}
"""What is typed -> the page that is shown first, or the section of it that is."""
LINKS = "[...document.querySelectorAll('.md-search-result__item:first-child a')].map(a => a.pathname + a.hash)"
"""The first page that is found, with the sections of it."""
SETTLED = "document.querySelector('.md-search-result__meta').innerText.includes('matching document')"


def test_decisions_and_results_rank_below_all_that_explains():
    pages = [*build_pages(), *(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))]
    below = {path for path in pages if path.split("/")[0] in ("decisions", "results", "source")}
    assert len(below) > 60
    lowest = min(find_boost(path) for path in pages if path not in below)
    assert 1000 * max(find_boost(path) for path in below) <= lowest, "a word in a title counts a thousand times"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the site, built and served on this machine."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; `make docs` and `make test-long` install it")
    folder = tmp_path_factory.mktemp("site")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


@pytest.mark.long
@needs_browser
@pytest.mark.parametrize("words", FIRST)
def test_the_guide_that_answers_is_found_first(words, site, browser):
    browser.open(f"{site}?q={quote(words)}", width=1400)
    browser.wait_for(SETTLED)
    assert browser.errors == []
    page, *sections = (link.lstrip("/") for link in browser.run(LINKS))
    assert FIRST[words] in (page, *sections[:1])

"""The pages in a real Chromium: runs in every state, steps, pipelines; by mouse and keys, dark, on small screens.

With MONOGRAPH_SCREENSHOTS=FOLDER every page leaves a picture there.
"""

import json
import os
import threading
from pathlib import Path

import pytest

from monograph import cli
from monograph.locks.folder_lock import FolderLock
from monograph.report.compare import compare_reports
from monograph.report.page import make_page, make_pipeline_page
from monograph.watch.server import RunServer
from tests.kit.browser import Browser, needs_browser
from tests.report.reports import make_pipeline_report, make_step_report
from tests.watch.run_folders import add_restart, make_record, make_run

pytestmark = needs_browser
SHOTS = os.environ.get("MONOGRAPH_SCREENSHOTS")
SCROLLS_SIDEWAYS = "document.documentElement.scrollWidth > innerWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


def show(browser, page, name, **screen):
    """Open a page, which throws nothing and asks for nothing, and keep a picture of it."""
    browser.open(page.as_uri(), **screen)
    assert browser.errors == [] and browser.requests == [page.as_uri()]
    if SHOTS:
        browser.screenshot(Path(SHOTS) / f"{name}.png", whole=True)


def focus(browser, key):
    """Put the focus on a chart, as Tab does."""
    browser.press("Tab")
    browser.run(f"document.querySelector('[data-key=\"{key}\"]').focus()")


def test_a_killed_and_two_finished_runs_stand_side_by_side(tmp_path, browser):
    sizes = {"a": (40, 1.0), "b": (25, 1.2), "c": (40, 0.9)}
    folders = [
        make_run(tmp_path / name, steps=steps, scale=scale, is_torn=steps < 40)
        for name, (steps, scale) in sizes.items()
    ]
    add_restart(folders[2])
    page = tmp_path / "page.html"
    assert cli.main(["watch", str(folders[0]), "--also", *map(str, folders[1:]), "--out", str(page)]) == 0
    show(browser, page, "runs")
    text = browser.text()
    assert text.count("finished") == 2 and text.count("ended early") == 1
    assert browser.count("svg path.curve") >= 3 * 7, "every run has a line in every chart"
    assert "Expert load: b" in text and "pipeline bubble 25 %, 13 % (rank by rank)" in text
    assert "started again after step 20 on 2 ranks" in text and "lost steps" in text and "goodput" in text
    browser.click("summary")
    assert "the load of layer 1 stays uneven" in browser.text("details pre")
    before = browser.run("document.querySelector('path.curve').getAttribute('d')")
    browser.click("button[value=smooth]")
    assert browser.run("document.querySelector('path.curve').getAttribute('d')") != before
    browser.click("button[value=raw]")
    focus(browser, "loss")
    browser.press("End", "ArrowLeft")
    assert browser.text("#tip").split("\n") == ["a: step 39, 0.9608", "b: step 25, 1.4400", "c: step 39, 0.8647"]
    browser.press("Escape")
    assert browser.run("document.getElementById('tip').hidden")
    show(browser, page, "runs-dark", dark=True)
    show(browser, page, "runs-narrow", width=420)
    assert not browser.run(SCROLLS_SIDEWAYS)


def test_the_page_of_a_running_run_follows_it_and_keeps_what_is_open(tmp_path, browser):
    folder = make_run(tmp_path / "run", steps=10)
    lock = FolderLock(folder)
    lock.acquire()
    with RunServer([folder]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser.open(server.address)
        assert "running" in browser.text("article") and "step 10 of 40" in browser.text("article")
        browser.run("document.querySelector('summary').focus()")
        browser.press("Enter")
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(make_record(11)) + "\n")
        browser.wait_for("document.body.innerText.includes('step 11 of 40')")
        assert browser.run("document.querySelector('details').open"), "drawn anew and still open"
        assert browser.run("document.activeElement.tagName") == "SUMMARY"
        lock.release()
        browser.run("refresh()")
        assert "ended early" in browser.text("article")
        server.shutdown()
    browser.run("refresh()")
    browser.wait_for("document.body.innerText.includes('The server has stopped')")
    assert browser.errors == [] and {url.rsplit("/", 1)[0] + "/" for url in browser.requests} == {server.address}


@pytest.fixture(scope="module")
def step_page(tmp_path_factory):
    page = tmp_path_factory.mktemp("page") / "index.html"
    page.write_text(make_page(make_step_report()), encoding="utf-8")
    return page


def test_a_step_is_searched_by_keys_and_leads_to_its_code(step_page, browser):
    show(browser, step_page, "step")
    assert "SLOW" in browser.text(".tiles")
    browser.run("document.body.dispatchEvent(new KeyboardEvent('keydown', {key: '/', bubbles: true}))")
    browser.press("mm work")
    assert "6 nodes with" in browser.text("#graph")
    assert browser.count("#graph details[open] pre div") == 4, "equal blocks are listed once"
    browser.click("#graph a.source")
    browser.wait_for("document.querySelector('.target') !== null")
    assert browser.run("document.querySelector('.target').id") == "monograph/graph/sources.py:20"
    assert browser.run("document.querySelector('.target').closest('details').open")


def test_a_step_before_and_after_each_pass_and_its_difference(step_page, browser):
    browser.open(step_page.as_uri())
    assert browser.text("#graph select").split() == ["captured", "add_relu"]
    nodes = browser.text("#graph details")
    browser.run("s = document.querySelector('#version'); s.value = 0; s.dispatchEvent(new Event('change'))")
    counts = [text.removeprefix("forward block 0: work") for text in (nodes, browser.text("#graph details"))]
    assert counts == ["4 nodes", "3 nodes"], "block 0 reads the input, others what came before"
    browser.click("a[href='#pass-add_relu']")
    browser.wait_for("document.querySelector('#pass-add_relu').open")
    browser.wait_for("document.querySelector('#pass-add_relu .added') !== null")
    focus(browser, "timeline final")
    browser.press("ArrowDown", "End")
    assert "param_all_gather, 1 collective" in browser.text("#tip")
    focus(browser, "memory")
    browser.press("Home")
    assert "after all passes, node 0 of" in browser.text("#tip") and "as captured, node 0 of" in browser.text("#tip")


def test_two_steps_are_compared_on_one_page(tmp_path, browser):
    page = tmp_path / "compared.html"
    left, right = make_step_report(), make_step_report("other", blocks=5, is_changed=False)
    page.write_text(compare_reports(left, right), encoding="utf-8")
    show(browser, page, "compared")
    assert "A: hand_made, B: other" in browser.text("h1")
    assert "3 →\xa05" in browser.text("#collectives").replace("→ ", "→\xa0")
    browser.click("#changes summary")
    browser.wait_for("document.querySelector('#difference .removed') !== null")
    assert browser.count("#difference .head") >= 1
    assert browser.count("#time svg") == 2


def test_a_pipeline_is_a_chart_of_all_ranks_with_their_memory(tmp_path, browser):
    page = tmp_path / "index.html"
    page.write_text(make_pipeline_page(make_pipeline_report()), encoding="utf-8")
    show(browser, page, "pipeline")
    assert "bubble" in browser.text(".tiles") and "rank 3" in browser.text("#schedule")
    focus(browser, "gantt 0")
    browser.press("ArrowRight")
    assert "rank 0, 0F1 (forward): 10.0 ms to 20.0 ms" in browser.text("#tip")
    browser.press("ArrowDown")
    assert "rank 1, 1F0 (forward): 10.0 ms to 20.0 ms" in browser.text("#tip")
    focus(browser, "memory 0")
    browser.press("End")
    assert "rank 0, 0W7: " in browser.text("#tip")
    page.write_text(compare_reports(make_pipeline_report(), make_pipeline_report("1f1b")), encoding="utf-8")
    show(browser, page, "pipelines-dark", dark=True)
    assert browser.count("section svg") == 4 and "A: hand_made" in browser.text("h1")


def test_pages_fit_small_screens_and_use_the_colors_of_the_system(step_page, browser):
    colors = []
    for dark in (False, True):
        show(browser, step_page, f"step-narrow{'-dark' * dark}", width=420, dark=dark)
        assert not browser.run(SCROLLS_SIDEWAYS)
        colors.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert colors == ["rgb(251, 251, 250)", "rgb(20, 23, 27)"]


def test_everything_that_does_something_is_reached_by_the_tab_key(step_page, browser):
    browser.open(step_page.as_uri())
    wanted = browser.count("a[href], button, select, input, summary, svg[tabindex]")
    seen = []
    for _ in range(wanted + 5):
        browser.press("Tab")
        seen.append(browser.run("(e => e.dataset.key || e.id || e.innerText)(document.activeElement)"))
    assert {"memory", "timeline final", "saved", "search", "version", "add_relu", "Timeline captured"} <= set(seen)
    assert len(set(seen)) >= wanted - 6, "several links have one name"

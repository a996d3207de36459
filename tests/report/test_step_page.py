"""The page of a step in a real Chromium: what it costs, where the time goes, and colors that mean something."""

import pytest

from monograph.report.compare import compare_reports
from monograph.report.page import make_page
from tests.kit.browser import Browser, needs_browser
from tests.report.reports import make_step_report

pytestmark = needs_browser
FIRST_ROW = "layers.*.work mm forward 3.84 s 18.1 % compute 100.0 % 3, blocks 0..2 float32[4, 4] sources.py:20"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


@pytest.fixture
def open_page(browser, tmp_path):
    def open_page(report):
        page = tmp_path / "index.html"
        page.write_text(make_page(report), encoding="utf-8")
        browser.open(page.as_uri())
        assert browser.errors == []

    return open_page


def test_the_first_tiles_are_the_step_time_and_mfu(open_page, browser):
    report = make_step_report()
    open_page(report)
    tiles = browser.run("[...document.querySelectorAll('.tile')].map(tile => tile.innerText.split('\\n'))")
    seconds, before = (report[name]["timeline"]["total_seconds"] for name in ("final", "captured"))
    assert tiles[0] == ["step time, estimated", f"{seconds:.1f} s", f"as captured: {before:.1f} s"]
    assert tiles[1] == ["MFU", f"{1000 / seconds:.1f} %", f"as captured: {1000 / before:.1f} %"]
    report["captured"]["mfu"] = report["final"]["mfu"] = None
    open_page(report)
    assert "MFU" not in browser.text(".tiles")


def test_the_costliest_ops_stand_in_a_table_and_under_the_roofline(open_page, browser):
    open_page(make_step_report())
    assert browser.text("#speed table tbody tr").split() == FIRST_ROW.split()
    assert browser.count("#speed circle") == 2, "the two kinds of matmuls"
    assert "compute waits" not in browser.text("#speed .legend") and "memory" in browser.text("#speed .legend")
    browser.run("document.querySelector('[data-key^=roofline]').focus()")
    browser.press("Tab")
    browser.run("document.querySelector('[data-key^=roofline]').focus()")
    browser.press("End")
    assert "of the peak of float32" in browser.text("#tip")


def test_passes_that_did_nothing_are_folded_away(open_page, browser):
    open_page(make_step_report())
    assert "idle" not in browser.text("#passes table")
    assert browser.text("#idle") == "1 passchanged nothing: off, not applicable, or nothing found"
    browser.click("#idle summary")
    assert "idle\tskipped\tnothing" in browser.text("#idle table")


def test_the_rates_of_the_machine_stand_once(open_page, browser):
    report = make_step_report()
    report["run"]["notes"] = [f"Times are estimates for SLOW (no GPU here): {report['run']['machine'][6:]}.", "More."]
    open_page(report)
    text = browser.run("document.body.innerText")
    assert text.count("1 TFLOP/s, for tests") == 1 and "for SLOW (no GPU here). More." in text


def test_a_pass_that_ran_and_found_nothing_is_folded_away_too(open_page, browser):
    report = make_step_report()
    report["passes"][0] |= {"note": "0 relus", "diff": "nothing changed\n"}
    open_page(report)
    assert "0 relus" not in browser.text("#passes .card") and "0 relus" not in browser.text("#changes")
    assert browser.text("#idle").startswith("2 passes")
    browser.click("#idle summary")
    assert "add_relu\tran\t0 relus" in browser.text("#idle table")


def test_bars_of_saved_bytes_and_circles_of_the_roofline_say_what_they_are(open_page, browser):
    open_page(make_step_report())
    labels = browser.run("[...document.querySelectorAll('[data-key=saved] text')].map(each => each.textContent)")
    assert [label.partition(":")[0] for label in labels] == ["block 0", "block 1", "block 2"]
    assert all(label.endswith(" B") for label in labels)
    assert browser.run("[...document.querySelectorAll('#speed .legend')].pop().innerText").split() == [
        "forward",
        "backward",
    ]


def test_numbers_are_colored_only_where_less_is_better_and_they_differ(open_page, browser):
    report = make_step_report()
    row, cost = report["passes"][0], report["passes"][0]["before"]
    row["before"] = cost | {"collectives": 5, "peak_bytes": 100 << 20, "exposed_seconds": 2.0}
    row["after"] = cost | {"collectives": 3, "peak_bytes": (100 << 20) + 1, "exposed_seconds": 3.0}
    open_page(report)
    cells = browser.run("[...document.querySelectorAll('#passes tbody tr:first-child td')].map(cell => cell.innerText)")
    assert cells[3:6] == ["5 → 3", "100 MiB", "2.00 s → 3.00 s"]
    colored = "[...document.querySelectorAll('#passes .less, #passes .more')].map(e => [e.className, e.innerText])"
    assert browser.run(colored) == [["change more", "2.00 s → 3.00 s"]]


def test_boxes_of_the_graph_are_named_after_their_modules(open_page, browser):
    open_page(make_step_report())
    names = browser.run("[...document.querySelectorAll('#graph summary b')].map(name => name.innerText)")
    assert names[:2] == ["forward block 0: work", "forward blocks 1..2: work"]
    assert names[-1] == "backward: outside of the modules"


def test_a_comparison_shows_where_the_time_goes_on_both_sides(tmp_path, browser):
    page = tmp_path / "compared.html"
    page.write_text(compare_reports(make_step_report(), make_step_report("other", blocks=5)), encoding="utf-8")
    browser.open(page.as_uri())
    assert browser.errors == []
    assert browser.count("#speed svg") == browser.count("#speed table") == 2


def test_a_comparison_shows_numbers_only_after_passes_that_changed_them(tmp_path, browser):
    left, right = make_step_report(), make_step_report("other", blocks=5)
    for report in (left, right):
        cost = report["passes"][0]["after"]
        same = {"name": "same", "status": "ran", "note": "0 nodes", "before": cost, "after": cost}
        report["passes"].insert(1, report["passes"][0] | same)
    page = tmp_path / "compared.html"
    page.write_text(compare_reports(left, right), encoding="utf-8")
    browser.open(page.as_uri())
    rows = "[...document.querySelectorAll('#passes > .card tbody tr')].map(row => row.innerText.split('\\t'))"
    captured, changed, same = browser.run(rows)
    assert captured[:4] == ["as captured", "", "", "20 → 32"]
    assert changed[0] == "add_relu" and changed[3] == "23 → 37"
    assert same == ["same", "0 nodes", "the same", "", "", ""]
    browser.click("#idle summary")
    assert "idle\tskipped: nothing\tthe same" in browser.text("#idle table")

"""The page of a plan: its data, and what a browser shows of it."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from monograph import cli
from monograph.commands.arguments import RankOptions
from monograph.commands.request import read_request
from monograph.parallel.mesh import Mesh
from monograph.plan.choice import PipelineChoice, RunChoice
from monograph.plan.depth import plan_depth
from monograph.plan.memory import MemoryParts
from monograph.plan.page import MAX_MISFITS, collect_plan
from monograph.plan.search import PlanResult
from monograph.report.page import make_plan_page
from tests.kit.browser import Browser, needs_browser
from tests.plan.test_show import H100, make_run

GIB = 1 << 30
LIMIT = "document.querySelector('#chart text.limit').textContent"
OPEN = "[...document.querySelectorAll('details[open]')].map(each => each.id)"
WORDS = ["llama3_1b", "--training.global_batch_size", "32", "--job.description", "</script><script>throw 1</script>"]


def make_sized_run(request, choice, *, seconds, saved_gib, **changes):
    """A planned run of that length and memory."""
    run = make_run(request, choice)
    memory = MemoryParts(
        parameters=GIB, gradients=GIB, optimizer=2 * GIB, saved=saved_gib * GIB, working=0, most_saved=0
    )
    return replace(run, step=replace(run.step, compute_seconds=seconds, memory=memory, **changes))


@pytest.fixture
def result():
    request = read_request(WORDS, RankOptions())
    groups = {"collective_seconds": {"fsdp_gather": 0.5, "tp": 0.25}, "exposed_seconds": {"fsdp_gather": 0.125}}
    piped = make_sized_run(request, RunChoice(Mesh(pp=2, dp_shard=4), 1, 8, "full", True), seconds=0.9, saved_gib=20)
    piped = replace(piped, step=replace(piped.step, bubble_seconds=0.18, idle_seconds=0.54))
    runs = [
        make_sized_run(request, RunChoice(Mesh(dp_shard=8), 1, 4, "none", True), seconds=1.0, saved_gib=40, **groups),
        replace(piped, pipeline=PipelineChoice("zero_bubble")),
    ]
    choice = RunChoice(Mesh(dp_shard=8), 1, 4, "min_cut", True, "fast")
    misfits = [
        make_sized_run(request, RunChoice(Mesh(dp_replicate=8), 1, 4, "none", True), seconds=1 + n, saved_gib=90)
        for n in range(MAX_MISFITS + 2)
    ]
    misfits.append(make_sized_run(request, misfits[0].choice, seconds=0.5, saved_gib=400))
    return PlanResult(
        runs=runs,
        others=[make_sized_run(request, choice, seconds=0.8, saved_gib=41)],
        misfits=misfits,
        considered=1200,
        captured=9,
        closed={"ep": "the model has no routed experts"},
        depth=plan_depth(["dense"] * 4),
    )


def collect(result):
    return collect_plan(result, WORDS, 8, ["--gpus", "8"])


def test_the_data_has_the_runs_the_other_numerics_and_the_fastest_misfits(result):
    data = collect(result)
    assert [run["kind"] for run in data["runs"]] == ["best", "best", "other", *["misfit"] * MAX_MISFITS]
    assert [run["label"] for run in data["runs"][:3]] == ["1", "2", "numerics fast"]
    assert data["memory_bytes"] == H100.memory_bytes
    assert shlex.split(data["command"]) == ["monograph", "plan", *WORDS, "--gpus", "8"]
    misfits = [run["tokens_per_second"] for run in data["runs"][3:]]
    assert misfits == sorted(misfits, reverse=True)
    assert misfits[0] == result.misfits[0].tokens_per_second, "one that needs several devices' memory is left out"


def test_the_times_and_the_memory_of_a_run_add_up(result):
    for run in collect(result)["runs"]:
        assert sum(seconds for _, seconds in run["times"]) == pytest.approx(run["update_seconds"])
        assert sum(size for _, size in run["memory"]) == pytest.approx(run["needed_bytes"])


def test_collectives_of_an_update_say_how_long_compute_waits_for_them(result):
    whole, piped = collect(result)["runs"][:2]
    assert whole["collectives"] == [
        {"group": "fsdp_gather", "seconds": 2.0, "exposed_seconds": 0.5},
        {"group": "tp", "seconds": 1.0, "exposed_seconds": 0.0},
    ]
    assert piped["collectives"] == []


def test_a_bubble_is_divided_into_filling_and_stages_of_different_lengths(result):
    whole, piped = collect(result)["runs"][:2]
    assert (whole["bubble"], whole["notes"]) == (None, [])
    assert piped["bubble"] == pytest.approx(0.54 / 7.38)
    assert piped["notes"] == [
        "pipeline bubble, on average over ranks: 7.3 % of an update; 2.4 % while the pipeline fills and drains, "
        "4.9 % because the stages take different times"
    ]


def test_the_page_is_one_file_and_text_from_the_command_cannot_leave_its_place(result):
    page = make_plan_page(collect(result))
    assert page.count("<script>") == page.count("</script>") == 1
    assert "innerHTML" not in page and not re.findall(r"(?:src|href)\s*=|@import|url\(", page)
    data = json.loads(re.search(r"const plan = (.*);\n", page)[1])
    assert data["runs"][0]["command"] == collect(result)["runs"][0]["command"]


def test_a_plan_page_that_is_no_html_file_is_refused_at_once(capsys):
    assert cli.main(["plan", "llama3_1b", "--gpus", "8", "--machine", "h100", "--out", "plan.json"]) == 2
    assert "--out plan.json" in capsys.readouterr().err


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


@needs_browser
@pytest.mark.parametrize("screen", [{}, {"width": 390, "dark": True}], ids=["wide", "narrow and dark"])
def test_points_lead_to_the_details_of_their_run(result, browser, tmp_path, screen):
    page = tmp_path / "plan.html"
    page.write_text(make_plan_page(collect(result)), encoding="utf-8")
    browser.open(page.as_uri(), **screen)
    assert browser.errors == [] and browser.requests == [page.as_uri()]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    assert browser.count("#chart circle") == 3 + MAX_MISFITS
    assert browser.count("#chart line.limit") == 1 and "74.5 GiB" in browser.run(LIMIT)
    assert browser.text("#table tbody tr").split("\t")[1:4] == ["dp_shard 8", "1 x 4", "all"]
    assert browser.run(OPEN) == ["run-1"]
    browser.press("Tab")
    browser.run("document.querySelector('[data-key=runs]').focus()")
    browser.press("Home", "Enter")
    assert browser.run(OPEN) == ["run-1", "run-2"]
    assert "zero_bubble" in browser.text("#run-2") and "because the stages take different times" in browser.text(
        "#run-2"
    )


@needs_browser
def test_the_simulated_mesh_and_its_fault_are_drawn(result, browser, tmp_path):
    rows = [{"op": "all gather", "group": "fsdp_gather", "count": 7, "axes": ["dp_shard", "cp"]}]
    mesh = {"ranks": 16, "axes": [{"name": "dp_shard", "degree": 8}, {"name": "cp", "degree": 2}], "rows": rows}
    for fault, circles in (("", 2), ("partial over cp reaches head", 3)):
        drawn = mesh | {
            "is_equal": not fault,
            "fault": fault,
            "fault_axes": ["cp"],
            "compared": 9,
            "graphs": ["captured"],
        }
        page = tmp_path / "plan.html"
        page.write_text(make_plan_page(collect(result) | {"simulated": drawn}), encoding="utf-8")
        browser.open(page.as_uri())
        assert browser.errors == [] and browser.count("#mesh circle") == circles
        assert (fault or "Equal to one device") in browser.text("#mesh")


@needs_browser
def test_a_command_is_copied_or_selected_whole(result, browser, tmp_path):
    page = tmp_path / "plan.html"
    page.write_text(make_plan_page(collect(result)), encoding="utf-8")
    browser.open(page.as_uri())
    browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    browser.click("#run-1 button.copy")
    browser.wait_for("document.querySelector('#run-1 [role=status]').textContent === 'copied'")
    command = collect(result)["runs"][0]["command"]
    assert browser.run("window.copied") == command
    browser.run("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }")
    browser.click("#run-1 button.copy")
    browser.wait_for("document.querySelector('#run-1 [role=status]').textContent.startsWith('selected')")
    assert browser.run("getSelection().toString()") == command

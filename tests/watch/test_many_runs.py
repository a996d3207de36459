"""watch: what runs differ in, which of them a folder stands for, where a loss diverged, and when a run should end."""

import json
import math
import os
import re

import pytest

from monograph import cli, strict_json
from monograph.errors import ConfigError
from monograph.report.page import make_run_page
from monograph.watch.config_diff import MAX_ROWS, compare_settings, read_settings
from monograph.watch.divergence import MAX_SPANS, DivergenceReader
from monograph.watch.find_runs import MAX_SHOWN, choose_runs
from monograph.watch.runs import RunReader, collect_runs, make_readers
from tests.kit.browser import Browser, needs_browser
from tests.watch.run_folders import make_record, make_run


def make_losses(*losses):
    return [{"step": step, "loss": loss} for step, loss in enumerate(losses, 1)]


FALLING = [6.0 * 0.97**step for step in range(60)]


def test_a_loss_that_explodes_is_a_span_until_it_comes_down_again():
    reader = DivergenceReader()
    records = make_losses(*FALLING, *[50.0] * 30)
    (span,) = reader.read(records)
    assert span["kind"] == "diverged" and 60 < span["first"] < 70 and span["last"] == 90
    assert "optimizer.lr" in span["text"]
    records += make_losses(*FALLING, *[50.0] * 30, *[1.0] * 60)[90:]
    (span,) = reader.read(records)
    assert 90 < span["last"] < 112, "20 steps are compared"
    assert DivergenceReader().read(make_losses(*FALLING)) == []


def test_steps_without_a_finite_loss_are_spans_of_their_own():
    losses = [*FALLING, math.nan, math.inf, 1.0, math.nan]
    spans = DivergenceReader().read(make_losses(*losses))
    assert [(span["kind"], span["first"], span["last"]) for span in spans] == [
        ("not finite", 61, 62),
        ("not finite", 64, 64),
    ]
    assert len(DivergenceReader().read(make_losses(*[1.0, math.nan] * 400))) == MAX_SPANS


def test_a_file_that_is_read_anew_forgets_what_had_diverged():
    reader = DivergenceReader()
    assert reader.read(make_losses(*FALLING, math.nan))
    assert reader.read(make_losses(*FALLING)) == []


def test_a_run_that_ends_diverged_says_so_on_its_card(tmp_path):
    folder = make_run(tmp_path / "run")
    lines = [make_record(step, 80) | {"loss": 500.0} for step in range(41, 81)]
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
        file.write(strict_json.dump({"step": 81, "loss": math.nan}) + "\n")
    run = RunReader(folder).collect()
    assert [span["kind"] for span in run["diverged"]] == ["diverged", "not finite"]
    assert run["is_diverged"] and run["step_range"] == [1, 81]
    assert not RunReader(make_run(tmp_path / "calm")).collect()["is_diverged"]


def test_the_end_of_a_run_follows_from_its_last_record_and_its_pace(tmp_path):
    run = RunReader(make_run(tmp_path / "run", steps=30)).collect()
    assert run["ends_at"] == pytest.approx(1000.0 + 0.1 * 40)
    assert RunReader(make_run(tmp_path / "short", steps=1)).collect()["ends_at"] is None


def write_config(folder, **sections):
    (folder / "config.json").write_text(json.dumps({"training": {"steps": 40}} | sections))


def test_only_settings_that_differ_between_runs_are_listed(tmp_path):
    folders = [make_run(tmp_path / name) for name in "abc"]
    write_config(folders[0], optimizer={"lr": 1e-3, "betas": [0.9, 0.95]}, job={"dump_folder": "a"})
    write_config(folders[1], optimizer={"lr": 1e-4, "betas": [0.9, 0.95]}, job={"dump_folder": "b"}, debug={"seed": 1})
    (folders[2] / "config.json").unlink()
    found = collect_runs(make_readers(folders), is_live=False)["settings"]
    assert found == {
        "rows": [
            {"path": "optimizer.lr", "values": ["0.001", "0.0001", None]},
            {"path": "debug.seed", "values": [None, "1", None]},
        ],
        "same": 2,
        "left_out": 0,
    }


def test_a_configuration_of_any_size_takes_a_bounded_place_on_the_page(tmp_path):
    folders = [make_run(tmp_path / name) for name in "ab"]
    for number, folder in enumerate(folders):
        write_config(folder, many={f"field{index}": str(number) * 10_000 for index in range(MAX_ROWS + 5)})
    found = collect_runs(make_readers(folders), is_live=False)["settings"]
    assert (len(found["rows"]), found["left_out"]) == (MAX_ROWS, 5)
    assert len(found["rows"][0]["values"][0]) < 200


def test_a_broken_configuration_is_named_once_and_the_others_are_compared(tmp_path):
    folders = [make_run(tmp_path / name) for name in "abc"]
    (folders[0] / "config.json").write_text("{")
    write_config(folders[1], debug={"seed": 1})
    found = collect_runs(make_readers(folders), is_live=False)
    assert found["settings"]["rows"] == [{"path": "debug.seed", "values": [None, "1", None]}]
    assert len([line for line in found["runs"][0]["warnings"] if "config.json" in line]) == 1
    assert compare_settings([read_settings(tmp_path / "none")] * 2)["rows"] == []


def test_a_folder_of_runs_stands_for_those_written_last(tmp_path, capsys):
    for number in range(MAX_SHOWN + 2):
        metrics = make_run(tmp_path / "outputs" / f"run{number}") / "metrics.jsonl"
        os.utime(metrics, (2e9 + number, 2e9 + number))
    (tmp_path / "outputs" / "notes").mkdir()
    runs, note = choose_runs(str(tmp_path / "outputs"))
    assert [run.name for run in runs] == [f"run{number}" for number in range(MAX_SHOWN + 1, 1, -1)]
    assert note == f"{tmp_path / 'outputs'} has 8 runs; the last 6 are shown, not run1, run0"
    assert choose_runs(str(tmp_path / "outputs" / "run0")) == ([tmp_path / "outputs" / "run0"], "")
    page = tmp_path / "page.html"
    assert cli.main(["watch", str(tmp_path / "outputs"), "--out", str(page)]) == 0
    assert note in capsys.readouterr().out and page.read_text().count('"state":"finished"') == MAX_SHOWN


def test_the_runs_of_a_folder_are_named_and_none_is_shown_twice(tmp_path, capsys):
    folders = [make_run(tmp_path / "outputs" / name) for name in "ab"]
    line = ["watch", str(tmp_path / "outputs"), "--also", str(folders[0]), "--out", str(tmp_path / "page.html")]
    assert cli.main(line) == 0
    assert f"runs in {tmp_path / 'outputs'}: " in capsys.readouterr().out
    assert (tmp_path / "page.html").read_text().count('"state":"finished"') == 2


def test_a_folder_without_runs_is_refused_with_what_to_name(tmp_path):
    (tmp_path / "empty" / "deeper" / "run").mkdir(parents=True)
    with pytest.raises(ConfigError, match="no run in") as caught:
        choose_runs(str(tmp_path / "empty"))
    assert "metrics.jsonl or config.json" in str(caught.value)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    found = Browser(tmp_path_factory.mktemp("home"))
    yield found
    found.close()


def open_runs(browser, tmp_path, folders, *, is_live=False, **screen):
    page = tmp_path / "page.html"
    data = collect_runs(make_readers(folders), is_live=False)
    for run in data["runs"] if is_live else []:
        run["state"] = "running"
    page.write_text(make_run_page(data), encoding="utf-8")
    browser.open(page.as_uri(), **screen)
    assert browser.errors == [] and "null" not in browser.text()


@needs_browser
def test_charts_shade_where_a_loss_diverged_up_to_its_last_step(tmp_path, browser):
    folders = [make_run(tmp_path / name) for name in ("calm", "wild")]
    with (folders[1] / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(make_record(step, 80) | {"loss": 500.0}) + "\n" for step in range(41, 71))
        file.writelines(strict_json.dump({"step": step, "loss": math.nan}) + "\n" for step in range(71, 81))
    open_runs(browser, tmp_path, folders)
    assert browser.text(".alarm") == "the loss is not finite" and browser.count(".alarm") == 1
    assert browser.count(".band") == 3 * 2, "loss, validation loss and gradient norm"
    names = browser.run("[...document.querySelectorAll('svg[data-key=loss] .band-name')].map(e => e.textContent)")
    assert names == ["wild: diverged", "wild: not finite"]
    bands = "[...document.querySelectorAll('svg[data-key=loss] .band')]"
    ends = browser.run(f"{bands}.map(band => +band.getAttribute('x') + +band.getAttribute('width'))")
    width = browser.run("document.querySelector('svg[data-key=loss]').viewBox.baseVal.width")
    assert ends[-1] == pytest.approx(width - 8), "the axis goes on to the last step, whose loss is no point"


@needs_browser
def test_no_text_of_an_axis_occurs_twice(tmp_path, browser):
    folder = make_run(tmp_path / "run")
    odd = [{"loss": 2.0 + step * 1e-6, "peak_memory_gib": 1.999 + step * 1e-5} for step in (1, 2, 3)]
    lines = [make_record(step) | changes for step, changes in enumerate(odd, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    open_runs(browser, tmp_path, [folder])
    texts = browser.run(
        "[...document.querySelectorAll('svg')].filter(svg => svg.querySelector('.curve')).map(svg => "
        "[...svg.querySelectorAll('text')].map(text => text.textContent))"
    )
    assert len(texts) >= 6 and all(len(set(each)) == len(each) >= 4 for each in texts)


@needs_browser
def test_shades_of_expert_load_have_a_legend(tmp_path, browser):
    open_runs(browser, tmp_path, [make_run(tmp_path / "run")])
    legends = browser.run("[...document.querySelectorAll('.charts .legend')].map(each => each.innerText.split('\\n'))")
    assert any("1 x the mean (balanced)" in each[0] and "4 x or more" in each[-1] for each in legends)
    assert any("0 % of the update" in each[0] and "100 %" in each[-1] for each in legends)


@needs_browser
@pytest.mark.parametrize("screen", [{}, {"width": 390, "dark": True}], ids=["wide", "narrow and dark"])
def test_a_running_run_has_an_eta_and_two_runs_a_table_of_settings(tmp_path, browser, screen):
    folders = [make_run(tmp_path / name, steps=30) for name in ("a", "b")]
    write_config(folders[0], optimizer={"lr": 1e-3})
    write_config(folders[1], optimizer={"lr": 1e-4})
    open_runs(browser, tmp_path, folders, is_live=True, **screen)
    assert re.search(r"1\.00 s left, ETA \w+ \d+, \d\d:16", browser.text("article"))
    assert browser.text("#settings summary").startswith("1 setting")
    browser.click("#settings summary")
    assert browser.text("#settings tbody tr").split() == ["optimizer.lr", "0.001", "0.0001"]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    open_runs(browser, tmp_path, folders[:1])
    assert browser.count("#settings") == 0


@needs_browser
def test_numbers_that_round_up_to_the_next_unit_are_written_in_it(tmp_path, browser):
    open_runs(browser, tmp_path, [make_run(tmp_path / "run")])
    shown = browser.run("[seconds(0.99996), seconds(0.99996e-3), seconds(0.5), flops(999.9e9), flops(5e9)]")
    assert shown == ["1.00 s", "1.00 ms", "500 ms", "1.00 TFLOP", "5.00 GFLOP"]

"""watch: runs in any state, read from their folders, and the page in a real browser."""

import http.client
import json
import os
import threading

import pytest

from monograph import cli
from monograph.locks.folder_lock import FolderLock
from monograph.report.page import make_run_page
from monograph.watch.runs import MAX_POINTS, collect_run, collect_runs
from monograph.watch.server import RunServer
from tests.watch.pages import dump_dom, find_texts, make_run, needs_browser, run_browser


def test_a_run_is_running_finished_or_ended_early_by_its_folder(tmp_path):
    assert collect_run(make_run(tmp_path / "done"))["state"] == "finished"
    killed = make_run(tmp_path / "killed", steps=17, is_torn=True)
    found = collect_run(killed)
    assert (found["state"], found["last"]["step"]) == ("ended early", 17), "half a line is passed over"
    lock = FolderLock(killed)
    lock.acquire()
    assert collect_run(killed)["state"] == "running"
    lock.release()
    assert collect_run(killed)["state"] == "ended early"


def test_curves_are_thin_and_end_with_the_last_step(tmp_path):
    long = collect_run(make_run(tmp_path / "long", steps=9000, wanted=9000))
    points = long["curves"]["loss"]
    assert len(points) <= MAX_POINTS + 1 and points[-1][0] == 9000
    assert len(long["expert_load"]["steps"]) <= 160 and long["expert_load"]["rows"] == 3
    assert len(long["bubble"]["steps"]) <= 160 and long["bubble"]["values"][0] == [0.25, 0.125]
    assert long["curves"]["validation_loss"][0][0] == 20
    assert long["warnings"] == ["10:00:01 W the load of layer 1 stays uneven"]
    assert long["checkpoints"] == ["step-00000020"] and ["steps", 900.0] in long["phases"]


def test_the_page_needs_no_other_file_and_data_cannot_break_out(tmp_path):
    folder = make_run(tmp_path / "x")
    (folder / "logs" / "rank-0.log").write_text("10:00:01 W </script><script>alert(1)</script>\n")
    page = make_run_page(collect_runs([folder], is_live=False))
    assert page.count("<script>") == page.count("</script>") == 1
    assert "https://" not in page and "prefers-color-scheme: dark" in page


def fetch(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture
def served(tmp_path):
    server = RunServer([make_run(tmp_path / "run", steps=10)])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server, tmp_path / "run"
    server.shutdown()
    server.server_close()


def test_the_server_answers_only_who_knows_the_token_and_reads_anew(served):
    server, folder = served
    assert server.server_address[0] == "127.0.0.1"
    assert fetch(server, "/")[0] == fetch(server, "/wrong/")[0] == fetch(server, f"/{server.token}/../x")[0] == 404
    status, page = fetch(server, f"/{server.token}/")
    assert status == 200 and b"<!doctype html>" in page
    before = json.loads(fetch(server, f"/{server.token}/data")[1])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "loss": 1.5, "tokens_per_second": 5.0}\n')
    after = json.loads(fetch(server, f"/{server.token}/data")[1])
    assert (before["runs"][0]["last"]["step"], after["runs"][0]["last"]["step"]) == (10, 11)


@needs_browser
def test_three_runs_are_drawn_side_by_side_in_a_browser(tmp_path):
    make_run(tmp_path / "first"), make_run(tmp_path / "second", steps=25, is_torn=True), make_run(tmp_path / "third")
    page = tmp_path / "page.html"
    also = [str(tmp_path / name) for name in ("second", "third")]
    assert cli.main(["watch", str(tmp_path / "first"), "--also", *also, "--out", str(page)]) == 0
    dom = dump_dom(page.as_uri(), tmp_path / "home")
    text = find_texts(dom)
    assert text.count("finished") == 2 and text.count("ended early") == 1
    assert "Validation loss" in text and "Gradient norm" in text and "Expert load: second" in text
    assert "Pipeline bubble: second" in text and "pipeline bubble 25 %, 13 % (rank by rank)" in text
    assert dom.count('class="curve"') >= 3 * 7, "every run has a line in every chart"
    shots = os.environ.get("MONOGRAPH_SCREENSHOTS")
    if shots:
        run_browser(f"--screenshot={shots}/runs.png", "--window-size=1280,1500", page.as_uri(), home=tmp_path / "home")


@needs_browser
def test_a_served_page_follows_a_run_in_a_browser(served, tmp_path):
    server, _ = served
    text = find_texts(dump_dom(server.address, tmp_path / "home"))
    assert "step 10 of 40" in text and "ended early" in text


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["watch"], "FOLDER is missing"),
        (["watch", "none"], "is not a folder"),
        (["watch", "."], "no run wrote there"),
        (["watch", ".", "--port", "99999"], "ports are 1 to 65535"),
    ],
)
def test_what_cannot_be_watched_is_refused(words, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert reason in capsys.readouterr().err

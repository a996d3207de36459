"""watch: runs in any state, read from their folders, and served to one reader."""

import http.client
import json
import socket
import threading

import pytest

from monograph import cli
from monograph.locks.folder_lock import FolderLock
from monograph.report.page import make_run_page
from monograph.watch.record_tail import RecordTail
from monograph.watch.runs import MAX_POINTS, RunReader, collect_runs, make_readers
from monograph.watch.server import MAX_CONNECTIONS, RunServer
from tests.watch.run_folders import add_restart, make_record, make_run


def collect(folder):
    return RunReader(folder).collect()


def test_a_run_is_running_finished_or_ended_early_by_its_folder(tmp_path):
    assert collect(make_run(tmp_path / "done"))["state"] == "finished"
    killed = make_run(tmp_path / "killed", steps=17, is_torn=True)
    found = collect(killed)
    assert (found["state"], found["last"]["step"]) == ("ended early", 17), "half a line is passed over"
    lock = FolderLock(killed)
    lock.acquire()
    assert collect(killed)["state"] == "running"
    assert RunReader(killed).collect(is_over=True)["state"] == "ended early"
    lock.release()
    assert collect(killed)["state"] == "ended early"


def test_curves_are_thin_keep_spikes_and_end_with_the_last_step(tmp_path):
    folder = make_run(tmp_path / "long", steps=3999, wanted=4000)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(make_record(4000) | {"grad_norm": 77.0}) + "\n")
    long = collect(folder)
    points = long["curves"]["loss"]
    assert len(points) <= MAX_POINTS + 1 and points[-1][0] == 4000
    assert max(long["curves"]["grad_norm"], key=lambda point: point[1]) == [4000, 77.0]
    lines = (folder / "metrics.jsonl").read_text().replace('"loss": 0.1, ', '"loss": 9.5, ')
    (folder / "metrics.jsonl").write_text(lines)
    assert [3600, 9.5] in collect(folder)["curves"]["loss"], "one step in the middle of a stretch"
    assert len(long["expert_load"]["steps"]) <= 160 and long["expert_load"]["rows"] == 3
    assert len(long["bubble"]["steps"]) <= 160 and long["bubble"]["values"][0] == [0.25, 0.125]
    assert long["curves"]["validation_loss"][0][0] == 20
    assert long["warnings"] == ["10:00:01 W the load of layer 1 stays uneven"]
    assert long["checkpoints"] == [20] and ["steps", 400.0] in long["goodput"]["parts"]


def test_restarts_and_lost_time_are_those_of_the_goodput_file(tmp_path):
    found = collect(add_restart(make_run(tmp_path / "run")))
    assert found["restarts"] == [{"step": 20, "ranks": 2}]
    assert found["goodput"]["lost_steps"] == 3
    assert {"steps", "lost steps", "restarts", "compile"} <= {name for name, _ in found["goodput"]["parts"]}
    assert found["goodput"]["seconds"] == pytest.approx(9.0), "from the first start to the last record"


def test_metrics_alone_tell_curves_restarts_and_time(tmp_path):
    records = [make_record(step) for step in range(1, 11)]
    again = [make_record(step) | {"goodput": {"start_up": 2.0, "steps": 0.1 * (step - 10)}} for step in range(11, 21)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records + again))
    found = collect(tmp_path)
    assert (found["state"], found["steps"], found["checkpoints"], found["warnings"]) == ("ended", 0, [], [])
    assert found["restarts"] == [{"step": 10, "ranks": None}]
    assert dict(found["goodput"]["parts"]) == {"steps": pytest.approx(2.0), "start-up": 6.0, "data": 0.01}
    assert len(found["curves"]["loss"]) == 20


def test_the_time_left_follows_from_the_pace_of_the_last_steps(tmp_path):
    assert collect(make_run(tmp_path / "run", steps=30))["seconds_left"] == pytest.approx(1.0)
    assert collect(make_run(tmp_path / "short", steps=1))["seconds_left"] is None


def test_a_growing_file_is_read_on_and_a_shortened_one_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = RecordTail(path)
    steps = lambda: [record["step"] for record in tail.read()]  # noqa: E731
    lines = [json.dumps({"step": step}) + "\n" for step in range(1, 8)]
    assert steps() == []
    path.write_text("".join(lines[:3]) + lines[3][:5])
    assert steps() == [1, 2, 3]
    path.write_text("".join(lines[:4]))
    assert steps() == [1, 2, 3, 4]
    assert [id(each) for each in tail.read()] == [id(each) for each in tail.read()], "nothing is read twice"
    path.write_text("".join(lines[:2]) + "".join(lines[5:]) + lines[0])
    assert steps() == [1, 2, 6, 7, 1], "shortened and continued between two looks"
    path.unlink()
    assert steps() == []


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    names = [reader.name for reader in make_readers([tmp_path / "a" / "run", tmp_path / "b" / "run"])]
    assert names == ["a/run", "b/run"]
    assert [reader.name for reader in make_readers([tmp_path / "a" / "one", tmp_path / "a" / "two"])] == ["one", "two"]


def test_the_page_needs_no_other_file_and_data_cannot_break_out(tmp_path):
    folder = make_run(tmp_path / "x")
    (folder / "logs" / "rank-0.log").write_text("10:00:01 W </script><script>alert(1)</script>\n")
    page = make_run_page(collect_runs(make_readers([folder]), is_live=False))
    assert page.count("<script>") == page.count("</script>") == 1
    assert "https://" not in page and "prefers-color-scheme: dark" in page


def fetch(server, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_answers_only_who_knows_the_token_and_reads_anew(tmp_path):
    folder = make_run(tmp_path / "run", steps=10)
    with RunServer([folder]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert server.server_address[0] == "127.0.0.1"
        assert fetch(server, "/")[0] == fetch(server, "/wrong/")[0] == fetch(server, f"/{server.token}/../x")[0] == 404
        status, page = fetch(server, f"/{server.token}/")
        assert status == 200 and b"<!doctype html>" in page
        before = json.loads(fetch(server, f"/{server.token}/data")[1])
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 11, "loss": 1.5, "tokens_per_second": 5.0}\n')
        after = json.loads(fetch(server, f"/{server.token}/data")[1])
        assert (before["runs"][0]["last"]["step"], after["runs"][0]["last"]["step"]) == (10, 11)
        server.shutdown()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["watch"], "FOLDER is missing"),
        (["watch", "none"], "is not a folder"),
        (["watch", "."], "no run in"),
        (["watch", ".", "--port", "99999"], "ports are 1 to 65535"),
    ],
)
def test_what_cannot_be_watched_is_refused(words, reason, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize("path", [b"/\xff", b"/\xc3\xa9/", b"/%ff/", b"//", b"*", b"/" + b"a" * 60_000])
def test_odd_paths_are_not_found_and_leave_the_terminal_alone(tmp_path, path, capfd):
    with RunServer([make_run(tmp_path / "run", steps=3)]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        with socket.create_connection(server.server_address, timeout=5) as link:
            link.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert link.recv(100).startswith(b"HTTP/1.0 404")
        server.shutdown()
        thread.join(5)
    assert capfd.readouterr().err == ""


def test_half_requests_keep_nobody_from_the_page(tmp_path):
    with RunServer([make_run(tmp_path / "run", steps=3)]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        links = [socket.create_connection(server.server_address, timeout=5) for _ in range(60)]
        for link in links:
            link.sendall(b"GET /")
        assert fetch(server, f"/{server.token}/data")[0] == 200
        assert server.count_connections() <= MAX_CONNECTIONS
        for link in links:
            link.close()
        server.shutdown()
        thread.join(5)


def test_a_port_that_is_taken_is_refused_in_words(tmp_path, capsys):
    folder = make_run(tmp_path / "run", steps=3)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["watch", str(folder), "--port", port]) == 2
    assert f"--port {port}" in capsys.readouterr().err


def test_an_error_shows_what_a_terminal_would_obey_as_escapes(capsys):
    assert cli.main(["watch", "a\x1b[2J\rb\u202ec"]) == 2
    assert r"a\x1b[2J\rb\u202ec is not a folder" in capsys.readouterr().err

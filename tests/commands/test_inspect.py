"""`monograph inspect`: no GPU, no ranks, no memory for parameters, and a folder that tells the whole story."""

import json
import resource
import subprocess
import sys

import pytest
import torch

from monograph import cli
from monograph.commands.inspect import list_notes
from monograph.machine.choose import find_machine
from monograph.recipes.catalog import load_recipe
from monograph.train.layout import count_ranks
from tests.test_cli import RUN_MANY

MESH = "--ranks 4 --parallelism.tensor_parallel_degree 2 --parallelism.expert_parallel_degree 2"


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspected")
    (folder / "07-of_an_earlier_run.diff").write_text("old")
    (folder / "08-notes.txt").write_text("not listed")
    earlier = {"run": {"command": "monograph inspect x"}, "passes": [{"files": ["07-of_an_earlier_run.diff"]}]}
    (folder / "report.json").write_text(json.dumps(earlier))
    words = f"inspect deepseek_v3_debugmodel --out {folder} {MESH} --model.n_layers 3 --training.seq_len 64"
    assert cli.main(words.split()) == 0
    return folder


@pytest.mark.long
def test_the_folder_has_the_graph_after_every_pass_that_ran(inspected):
    report = json.loads((inspected / "report.json").read_text())
    ran = [(index, each) for index, each in enumerate(report["passes"], 1) if each["status"] == "ran"]
    expected = {"00-captured.txt", "report.json", "index.html", "predicted.trace.json", "08-notes.txt"}
    expected |= {f"{index:02d}-{each['name']}.{end}" for index, each in ran for end in ("txt", "diff")}
    assert {path.name for path in inspected.iterdir()} == expected
    assert len(ran) >= 5 and len(report["passes"]) > len(ran), "skipped passes are reported as well"


def test_texts_fold_equal_blocks_and_differences_say_what_changed(inspected):
    assert "forward block 2: like 1" in (inspected / "00-captured.txt").read_text()
    diff = (inspected / "03-remove_dead_code.diff").read_text()
    assert "forward blocks 1..2:" in diff
    assert "\n  - " in diff and "\n  + " not in diff


def test_the_report_knows_run_costs_saved_values_and_source_lines(inspected):
    report = json.loads((inspected / "report.json").read_text())
    assert any("in a step" in note and "in an evaluation" in note for note in report["run"]["notes"])
    assert "Assumes balanced experts." in report["run"]["notes"]
    assert report["run"]["ranks"] == 4 and report["run"]["mesh"]["ep"] == 2
    assert report["run"]["numerics"] == "bitwise identical to eager", "as a GPU would run it"
    assert report["run"]["target"] == "cuda" and "GPU program, traced without one." in report["run"]["notes"]
    assert report["final"]["cost"]["flops"] >= report["captured"]["cost"]["flops"] > 0
    assert len(report["final"]["memory"]["points"]) <= 2000
    saved = report["captured"]["saved"]
    own = [each for each in saved if each["path"].startswith("layers.1.moe.router") and not each["role"]]
    assert own and all(each["source"].startswith("monograph/models/router.py:") for each in own)
    groups = {each["group"] for each in report["captured"]["collectives"]}
    assert {"fsdp_gather", "tp", "ep"} <= groups
    lanes = [lane["name"] for lane in report["final"]["timeline"]["lanes"]]
    assert lanes[0] == "compute" and "tp" in lanes


@pytest.mark.long
def test_times_are_estimates_for_the_machine_that_was_named(tmp_path, capsys):
    words = "inspect llama3_debugmodel --ranks 16 --model.n_layers 2 --training.seq_len 64 --debug.device cpu"
    reports = {}
    for name in ("auto", "l40s", "gb200"):
        assert cli.main([*words.split(), "--machine", name, "--out", str(tmp_path / name)]) == 0
        reports[name] = json.loads((tmp_path / name / "report.json").read_text())
        assert reports[name]["run"]["notes"][0] in capsys.readouterr().out
    elsewhere = "Times are estimates for H100 (no GPU here; --machine NAME): "
    assert reports["auto"]["run"]["notes"][0].startswith(elsewhere)
    assert reports["l40s"]["run"]["notes"][0].startswith("Times are estimates for L40S: ")
    assert not any("experts" in note for note in reports["l40s"]["run"]["notes"]), "the model is dense"
    assert reports["gb200"]["run"]["machine"].startswith("GB200: ")
    l40s, h100, gb200 = (reports[name]["final"]["timeline"] for name in ("l40s", "auto", "gb200"))
    assert l40s["total_seconds"] > h100["total_seconds"] > gb200["total_seconds"] > 0
    assert h100["communication_seconds"] > gb200["communication_seconds"], "16 ranks are two nodes, or part of a rack"
    graphs = [(tmp_path / name / "00-captured.txt").read_text() for name in reports]
    assert graphs[0] == graphs[1] == graphs[2]


def test_a_peak_beyond_the_memory_of_the_machine_is_noted():
    cpu, machine = torch.device("cpu"), find_machine("h100")
    peaks = {"a step": 1 << 30, "an evaluation": machine.memory_bytes}
    notes = list_notes(cpu, machine, "", peaks, 0)
    seen = "Estimated peak memory: 1.00 GiB in a step, 74.5 GiB in an evaluation; with 0 B of optimizer state"
    assert f"{seen}." in notes
    assert "GPU program, traced without one." in notes
    for changed, state in (({"a step": machine.memory_bytes + 1}, 0), ({}, 1)):
        more = list_notes(cpu, machine, "", peaks | changed, state)
        (note,) = [note for note in more if note not in notes]
        assert note.endswith("of optimizer state, more than the 74.5 GiB of H100.")


def test_an_unknown_machine_is_refused_before_anything_is_captured(tmp_path, capsys):
    assert cli.main(["inspect", "llama3_debugmodel", "--out", str(tmp_path / "out"), "--machine", "h10"]) == 2
    assert "did you mean H100?" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_is_not_written_among_the_texts_of_the_run(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("some text")
    words = f"inspect llama3_debugmodel --dataloader.dataset {tmp_path}/texts --out {tmp_path}/texts/report"
    assert cli.main(words.split()) == 2
    said = capsys.readouterr().err
    assert "in the folder of the dataset" in said and "choose a folder for --out outside of the dataset" in said
    assert not (tmp_path / "texts" / "report").exists()


@pytest.mark.slow
def test_a_large_model_is_captured_without_memory_for_its_parameters(tmp_path):
    """One dense and one MoE layer of the 671B model, whole on one rank."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = f"inspect deepseek_v3_671b --out {tmp_path} --model.n_layers 2 --model.n_dense_layers 1"
    assert cli.main(words.split()) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["captured"]["memory"]["input_bytes"]["state"] > 40 * 2**30
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 2**20


def test_degrees_alone_say_how_many_ranks_there_are():
    config = load_recipe("llama3_debugmodel").parallelism
    assert count_ranks(config) == 1
    assert count_ranks(config.replace(tensor_parallel_degree=2, data_parallel_shard_degree=4)) == 8


REFUSED = {
    "": "--out is missing",
    "--out there --ranks -1": "--ranks -1",
    "--out there --compile.mode eager": "inspect shows the captured graph",
    "--out there --ranks 3 --parallelism.tensor_parallel_degree 2": "there are 3",
    "--out pyproject.toml": "pyproject.toml is not a folder",
    "--out there --passes.off buckets": "there is no pass of that name",
}


def test_what_cannot_be_inspected_is_refused_at_once_without_torch():
    lines = [["inspect", "llama3_debugmodel", *words.split()] for words in REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY], input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    for (code, _, err, seconds), reason in zip(json.loads(done.stdout), REFUSED.values(), strict=True):
        assert (code, reason in err) == (2, True), err
        assert seconds < 2


def test_the_program_is_that_of_the_machine_named_wherever_it_is_captured(tmp_path):
    """On a GPU norms, gates and the loss are custom ops; on a CPU they are torch's, which save more for backward."""
    words = "inspect llama3_debugmodel --model.n_layers 1 --training.seq_len 64"
    reports, texts = {}, {}
    for name in ("cpu", "h200"):
        assert cli.main([*words.split(), "--machine", name, "--out", str(tmp_path / name)]) == 0
        reports[name] = json.loads((tmp_path / name / "report.json").read_text())
        texts[name] = (tmp_path / name / "00-captured.txt").read_text()
    assert "chunked_cross_entropy" in texts["h200"] and "chunked_cross_entropy" not in texts["cpu"]
    saved = {name: sum(each["bytes"] for each in report["captured"]["saved"]) for name, report in reports.items()}
    assert saved["h200"] < saved["cpu"]
    assert "CPU program." in reports["cpu"]["run"]["notes"]
    assert reports["cpu"]["run"]["numerics"] == "bitwise identical to eager"


def test_the_trace_has_every_lane_of_the_time_line_with_module_paths(inspected):
    report = json.loads((inspected / "report.json").read_text())
    events = json.loads((inspected / "predicted.trace.json").read_text())["traceEvents"]
    lanes = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert lanes == {lane["name"] for lane in report["final"]["timeline"]["lanes"]}
    spans = [event for event in events if event["ph"] == "X"]
    end = max(event["ts"] + event["dur"] for event in spans)
    assert end == pytest.approx(1e6 * report["final"]["timeline"]["total_seconds"])
    assert any(event["args"].get("module") == "layers.1.attention.wo" for event in spans)
    assert {event["cat"] for event in spans} == {"compute", "collective", "module"}


def test_the_report_has_the_graph_after_every_pass_with_the_code_it_comes_from(inspected):
    report = json.loads((inspected / "report.json").read_text())
    ran = [each["name"] for each in report["passes"] if each["status"] == "ran"]
    assert [each["name"] for each in report["graphs"]["versions"]] == ["captured", *ran]
    files = {source.rpartition(":")[0] for source in report["graphs"]["sources"]}
    assert "monograph/models/router.py" in files and files == set(report["code"])
    assert len((inspected / "index.html").read_bytes()) < 4 << 20


def test_a_pipeline_is_inspected_as_its_schedule_memory_and_stages(tmp_path, capsys):
    words = (
        "inspect llama3_debugmodel --ranks 2 --model.n_layers 2 --training.seq_len 64 --training.global_batch_size 4"
    )
    mesh = "--parallelism.pipeline_parallel_degree 2 --training.local_batch_size 1"
    assert cli.main([*words.split(), *mesh.split(), "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert {path.name for path in tmp_path.iterdir()} == {
        *("report.json", "index.html", "schedule.csv", "predicted.trace.json", "stage-00.txt", "stage-01.txt")
    }
    assert report["run"]["notes"][0] in capsys.readouterr().out
    assert report["run"]["notes"][0].startswith("Times are estimates for H100 (no GPU here; --machine NAME): ")
    assert [each["name"] for each in report["graphs"]["versions"]] == ["stage 0", "stage 1"]
    for rank in report["ranks"]:
        assert max(live for *_, live in rank["actions"]) == rank["peak_bytes"]
        assert len(rank["actions"]) == 2 * 4

"""`monograph bench`: the same work in every mode, measured, shown and kept."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from monograph import strict_json
from monograph.bench import BenchRow, draw_batch, write_json
from monograph.cli import main
from monograph.commands.bench import make_table
from monograph.models.model import BatchTensor
from monograph.recipes.catalog import load_recipe

TINY = "tests.kit.runs:tiny"


def test_modes_are_measured_and_profiled_on_the_same_tokens_and_end_with_the_same_loss(capsys, tmp_path):
    out = tmp_path / "kept" / "bench.json"
    words = [
        TINY,
        "--modes",
        "eager,exact",
        "--steps",
        "2",
        "--warmup",
        "0",
        "--out",
        str(out),
        "--profile",
        str(tmp_path),
    ]
    small = ["--parallelism.fsdp", "graph", "--model.n_layers", "1", "--model.n_dense_layers", "0"]
    assert main(["bench", *words, *small, "--balanced-routing"]) == 0
    shown = capsys.readouterr().out
    assert "tokens/s" in shown and "x eager" in shown
    kept = json.loads(out.read_text())
    eager, graph = kept["rows"]
    assert [eager["mode"], graph["mode"]] == ["eager", "exact"]
    assert eager["losses"] == graph["losses"], "same bits"
    assert [len(row["losses"]) for row in kept["rows"]] == [3, 3] and eager["losses"][-1] == eager["loss"]
    assert {row["numerics"] for row in kept["rows"]} == {"bitwise identical to eager"}
    assert eager["graph_tflops"] is None and graph["graph_tflops"] > 0
    assert all(row["ms"] > 0 and row["tokens_per_second"] > 0 for row in kept["rows"])
    assert kept["command"][:3] == ["monograph", "bench", TINY] and kept["versions"]["torch"]
    said = kept["command"]
    assert said.count(TINY) == 1 and said[-1] == "--balanced-routing"
    assert said[said.index("--modes") :][:6] == ["--modes", "eager,exact", "--steps", "2", "--warmup", "0"]
    assert "ms of kernels a step" in shown and "layers.*" in shown
    for mode in ("eager", "exact"):
        check_profile(tmp_path, mode)


@pytest.mark.long
def test_a_step_from_an_artifact_is_measured_like_one_that_was_captured(capsys, tmp_path):
    artifact, out = str(tmp_path / "artifact"), tmp_path / "bench.json"
    recipe = [TINY, "--compile.mode", "graph", "--validator.interval", "0"]
    assert main(["precompile", *recipe, "--out", artifact]) == 0
    words = [*recipe, "--modes", "exact", "--steps", "1", "--warmup", "0", "--out", str(out)]
    assert main(["bench", *words]) == 0
    captured = json.loads(out.read_text())["rows"][0]
    assert main(["bench", *words, "--compile.artifact", artifact]) == 0
    loaded = json.loads(out.read_text())["rows"][0]
    assert loaded["losses"] == captured["losses"], "same bits"
    assert captured["graph_tflops"] > 0 and loaded["graph_tflops"] is None
    assert "exact: bitwise identical to eager" in capsys.readouterr().out


def check_profile(folder, mode):
    shares = json.loads((folder / f"{mode}.shares.json").read_text())
    totals = [sum(share["ms"] for share in table) for table in shares.values()]
    assert totals[0] > 0 and totals == pytest.approx([totals[0]] * 3), "the same time, cut three ways"
    paths = {share["name"] for share in shares["by_path"]}
    assert any(path.startswith("layers.*.attention") and path.endswith("forward") for path in paths)
    assert any(path.startswith("layers.*.attention") and path.endswith("backward") for path in paths)
    assert "matmuls" in {share["name"] for share in shares["by_kind"]}
    assert json.loads((folder / f"{mode}.trace.json").read_text())["traceEvents"]


def test_a_loss_that_is_not_a_number_is_written_as_strict_json(tmp_path):
    numbers = dict(ms=1.0, spread=0.0, tokens_per_second=1.0, mfu=None, mfu_causal=None, graph_tflops=None)
    first = dict(peak_gib=None, first_step_seconds=1.0, first_step_shares={}, is_recorded=False, compilations=0)
    row = BenchRow(mode="eager", numerics="bitwise", **numbers, **first, loss=math.nan, losses=[1.0, math.inf])
    write_json(tmp_path / "rows.json", [row], ["monograph", "bench"])
    written = strict_json.parse((tmp_path / "rows.json").read_text())
    assert written["non_finite"] == {"rows/0/loss": "nan", "rows/0/losses/1": "inf"}


def test_the_peak_that_was_given_is_the_one_that_counts(tmp_path, capsys):
    words = [TINY, "--modes", "eager", "--steps", "1", "--warmup", "0", "--out", str(tmp_path / "rows.json")]
    words += ["--model.mask", "document", "--document-tokens", "8"]
    assert main(["bench", *words, "--metrics.peak_flops", "1e15"]) == 0
    (row,) = strict_json.parse((tmp_path / "rows.json").read_text())["rows"]
    assert 0 < row["mfu"] < 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([TINY, "--modes", "eager,exac"], "did you mean 'exact'?"),
        ([TINY, "--steps", "0"], "nothing to measure"),
        (["llama3_debugmodel", "--balanced-routing"], "this model has no experts"),
        (["llama3_debugmodel", "--model.mask", "causal", "--document-tokens", "8"], "--model.mask document"),
        ([TINY, "--document-tokens", "-8"], "it counts tokens"),
        ([TINY, "--parallelism.tensor_parallel_degree", "2"], "it measures the step of one device"),
        ([TINY, "--parallelism.expert_parallel_degree", "2"], "it measures the step of one device"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(words, said, capsys):
    assert main(["bench", *words]) == 2
    assert said in capsys.readouterr().err


def test_packed_documents_are_numbered_and_restart_their_positions():
    config = load_recipe("llama3_debugmodel")
    config = config.replace(training=config.training.replace(seq_len=12, local_batch_size=2))
    spec = {name: BatchTensor() for name in ("tokens", "positions", "documents")}
    batch = draw_batch(config, spec, torch.Generator().manual_seed(0), document_tokens=5)
    assert batch["documents"].tolist() == [[0] * 5 + [1] * 5 + [2] * 2] * 2
    assert batch["positions"].tolist() == [[*range(5), *range(5), 0, 1]] * 2


def test_on_a_narrow_terminal_modes_are_columns():
    told = {"numerics": "", "spread": 0.1, "mfu": None, "mfu_causal": None, "graph_tflops": 1.0, "peak_gib": None}
    told |= {"first_step_seconds": 1.0, "compilations": 0, "loss": 6.25, "is_recorded": False, "profile": None}
    speeds = {"eager": 100.0, "exact": 150.0}
    rows = [SimpleNamespace(mode=mode, ms=1e3 / each, tokens_per_second=each, **told) for mode, each in speeds.items()]
    wide, narrow = make_table(rows), make_table(rows, is_narrow=True)
    assert [column.header for column in narrow.columns] == ["mode", "eager", "exact"]
    cells = [list(column.cells) for column in wide.columns]
    assert [list(row) for row in zip(*(column.cells for column in narrow.columns), strict=True)] == [
        [column.header, *each] for column, each in zip(wide.columns[1:], cells[1:], strict=True)
    ]
    console = Console(width=80)
    assert (
        console.measure(narrow).maximum <= 80 < console.measure(wide, options=console.options.update(width=200)).maximum
    )

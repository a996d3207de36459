"""plan: candidates that the configuration accepts, estimates of deep models from few blocks, agreement with an H200."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys

import pytest
import torch

from benchmarks.plan_accuracy import RECORDED, estimate_step
from monograph import cli
from monograph.commands.arguments import RankOptions
from monograph.commands.request import read_request
from monograph.commands.sizes import parse_bytes
from monograph.errors import ConfigError
from monograph.execute.facts import make_facts
from monograph.graph.cost import find_node_costs
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import find_memory
from monograph.graph.timeline import find_timeline
from monograph.machine.table import MACHINES
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import build_passes
from monograph.plan.depth import find_reduced_depth, plan_depth
from monograph.plan.measure import capture_step, estimate_whole
from monograph.recipes.catalog import load_recipe
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.layout import plan_run_mesh
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.plan.on_ranks import track_peak
from tests.test_cli import RUN_MANY

H100 = MACHINES["H100"]


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_the_sum_over_micro_batches_counts_in_the_dtype_that_it_is_added_in(stored, tmp_path):
    changes = {"compile.mode": "graph", "compile.numerics": "fast", "training.compute_dtype": "bfloat16"}
    config = tiny("llama3", tmp_path, {**changes, "training.dtype": stored, "model.n_layers": 3})
    with torch.device("meta"):
        model = config.model.build()
        depth = find_reduced_depth(config.model, model)
    captured = capture_step(config, H100, depth, world_size=1)
    one, several = (estimate_whole(captured, config, count, H100).memory.gradients for count in (1, 2))
    elements = sum(parameter.numel() for parameter in model.parameters())
    kept = 2  # a recording of the first micro-batch keeps its gradients beside the sum
    assert several == pytest.approx((4 + kept) * elements, rel=0.01)
    assert one < several


def test_a_deep_model_is_captured_with_three_blocks_of_each_kind():
    depth = plan_depth(["dense"] * 3 + ["moe"] * 58)
    assert (depth.blocks, depth.extra, depth.total) == (6, {4: 55}, 61)
    assert plan_depth(["a", "b"] * 8).extra == {2: 5, 3: 5}
    assert plan_depth(["a", "a"]).extra == {}
    config = load_recipe("llama3_debugmodel").model
    with torch.device("meta"):
        assert find_reduced_depth(config, config.build()).blocks == 3


@pytest.mark.parametrize("model", ["llama3", pytest.param("deepseek_v3", marks=pytest.mark.long)])
def test_few_blocks_tell_the_time_and_memory_of_many(model, tmp_path):
    """The whole graph of eight blocks against its estimate from those that were captured."""
    changes = {"compile.mode": "graph", "model.n_layers": 8, "machine": "h100", "training.local_batch_size": 4}
    config = tiny(model, tmp_path, changes)
    config = config.replace(model=config.model.for_device("cuda"))
    with torch.device("meta"):
        depth = find_reduced_depth(config.model, config.model.build())
    step = estimate_whole(capture_step(config, H100, depth, world_size=4), config, 1, H100)
    with fake_groups(plan_run_mesh(config, 4), 0, torch.device("cpu")) as groups:
        source, settings = build_source(config, groups)
        facts = make_facts(source.table, groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        graph = capture_and_optimize(source, make_example(config, source), facts, passes, is_measured=False).graph
        inside = graph.module.graph
        sizes = LikelySizes(inside)
        timeline = find_timeline(inside, find_node_costs(inside, sizes, facts).seconds)
        memory = find_memory(graph, sizes)
    in_graph = step.memory.peak - step.memory.optimizer
    assert in_graph == pytest.approx(memory.peak_bytes, rel=0.02)
    assert step.step_seconds == pytest.approx(timeline.total_seconds, rel=0.05)


@pytest.mark.parametrize(
    "setting", [RECORDED[1], *(pytest.param(each, marks=pytest.mark.long) for each in (RECORDED[0], *RECORDED[2:]))]
)
def test_estimates_agree_with_steps_that_were_measured_on_an_h200(setting):
    config = read_request([*setting.words.split(), "--machine", "h200"], RankOptions()).config
    ms, gib = estimate_step(config, MACHINES["H200"])
    assert gib == pytest.approx(setting.gib, rel=0.05)
    assert ms == pytest.approx(setting.ms, rel=0.10)


@pytest.mark.long
@pytest.mark.parametrize("degrees", [{}, {"tp": 2}], ids=str)
@pytest.mark.parametrize("model", ["llama3", "deepseek_v3"])
def test_estimated_memory_is_what_tensors_hold_on_ranks(model, degrees, tmp_path):
    config = tiny(model, tmp_path, {"compile.mode": "graph", "machine": "cpu"}, **degrees)
    measured = max(pool.run(2, track_peak, config))
    with fake_groups(plan_run_mesh(config, 2), 0, torch.device("cpu")) as groups:
        source, settings = build_source(config, groups)
        facts = make_facts(source.table, groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        graph = capture_and_optimize(source, make_example(config, source), facts, passes).graph
    assert find_memory(graph).peak_bytes == pytest.approx(measured, rel=0.05)


def read_command(command, ranks):
    """The configuration of a printed command, checked as `train` does before it starts."""
    _, _, line = command.partition("train ")
    config = read_request(shlex.split(line.removesuffix(f" --ranks {ranks}")), RankOptions()).config
    return config, plan_run_mesh(config, ranks)


def check_runs(content, ranks):
    """Every printed command asks for what was planned, and is accepted."""
    for run in (*content["runs"], *content["other_numerics"]):
        config, mesh = read_command(run["command"], ranks)
        assert dataclasses.asdict(mesh) == run["mesh"]
        assert config.training.local_batch_size == run["local_batch_size"]
        assert config.activation_checkpoint.resolve(config.compile) == run["activation_checkpoint"]
        assert config.compile.numerics == run["numerics"]
        assert (config.passes.offload_activations.budget_gib > 0) == run["offload_activations"]
        if run["pipeline"]:
            assert config.parallelism.pipeline_schedule == run["pipeline"]["schedule"]


def test_a_plan_lists_the_best_and_how_to_run_each(tmp_path, capsys):
    path = tmp_path / "plan.json"
    line = "plan llama3_1b --gpus 1 --machine h200 --top 2 --explain --training.seq_len 4096"
    page = tmp_path / "plan.html"
    assert cli.main([*line.split(), "--json", str(path), "--out", str(page)]) == 0
    out = capsys.readouterr().out
    content = json.loads(path.read_text())
    runs = content["runs"]
    shown = json.loads(re.search(r"const plan = (.*);\n", page.read_text())[1])
    assert [run["command"] for run in shown["runs"] if run["kind"] == "best"] == [run["command"] for run in runs]
    assert f"page: {page}" in out
    assert runs[0]["tokens_per_second"] >= runs[-1]["tokens_per_second"] > 0
    assert runs[0]["needed_bytes"] <= 141e9 and runs[0]["command"] in out and "1 x H200" in out
    assert "waiting" in out or "compute" in out
    check_runs(content, 1)
    assert {run["numerics"] for run in runs} == {"exact"}, "no run changes the recipe's numerics"
    assert [run["changes"] for run in content["other_numerics"]] == ["numerics fast", "numerics float8"]
    assert content["not_searched"]["ep"] == "no routed experts"


PLANNED = {
    "llama3_debugmodel": "--training.global_batch_size 32 --parallelism.pipeline_parallel_degree 2",
    "deepseek_v3_debugmodel": "--training.global_batch_size 16",
}


@pytest.mark.long
@pytest.mark.parametrize("recipe", PLANNED)
def test_planned_commands_train_on_two_ranks(recipe, tmp_path, monkeypatch):
    """The fastest and the slowest row, and all with other numerics that a CPU has."""
    path = tmp_path / "plan.json"
    assert cli.main(f"plan {recipe} --gpus 2 --machine h100 {PLANNED[recipe]} --json {path}".split()) == 0
    content = json.loads(path.read_text())
    check_runs(content, 2)
    chosen = [*content["runs"][:: max(1, len(content["runs"]) - 1)], *content["other_numerics"]]
    monkeypatch.chdir(tmp_path)
    for number, run in enumerate(each for each in chosen if each["numerics"] != "float8"):
        words = shlex.split(run["command"].replace("monograph", "-m monograph", 1))
        short = f"--training.steps 2 --lr_scheduler.warmup_steps 0 --job.dump_folder run{number} --debug.device cpu"
        done = subprocess.run([sys.executable, *words, *short.split()], capture_output=True, text=True)
        assert done.returncode == 0, f"{run['command']}\n{done.stderr}"


@pytest.mark.long
def test_a_plan_of_the_guide_compares_ten_meshes(tmp_path, capsys):
    path = tmp_path / "plan.json"
    line = f"plan deepseek_v3_16b --gpus 64 --machine h100 --explain --json {path}"
    assert cli.main(line.split()) == 0
    out = capsys.readouterr().out
    content = json.loads(path.read_text())
    assert len({str(run["mesh"]) for run in content["runs"]}) == 10 == len(content["runs"])
    assert len(re.findall(r"^\d+\. .* takes \d+\.\d % longer: ", out, re.MULTILINE)) == 9
    assert content["captured"] <= 2 * 10 + 2 + len(content["other_numerics"])


@pytest.mark.long
def test_what_fits_only_with_full_recomputation_is_found(tmp_path, capsys):
    """8B parameters with their moments leave 10 GiB of an H200 to everything else."""
    assert cli.main(["plan", "llama3_8b", "--gpus", "1", "--machine", "h200", "--top", "2"]) == 0
    assert "full" in capsys.readouterr().out


@pytest.mark.long
def test_what_does_not_fit_is_refused_with_the_nearest(capsys):
    assert cli.main(["plan", "llama3_8b", "--gpus", "1", "--machine", "l40s", "--top", "1"]) == 1
    err = capsys.readouterr().err
    assert "nothing fits into the 44.7 GiB of 1 x L40S" in err and "the nearest needs" in err
    near = re.search(r"--gpus (\d+) \((.*): ([\d.]+) GiB\): (.*); or a machine", " ".join(err.split()))
    assert near, err
    config, mesh = read_command(near[4], int(near[1]))
    assert mesh.world_size == int(near[1]) > 1 and float(near[3]) < 44.7
    assert config.training.global_batch_size == load_recipe("llama3_8b").training.global_batch_size


@pytest.mark.parametrize(("text", "size"), [("80GiB", 80 * 2**30), ("141 GB", 141 * 10**9), ("1.5tib", 1536 * 2**30)])
def test_sizes_are_read_with_their_unit(text, size):
    assert parse_bytes(text) == size
    with pytest.raises(ConfigError, match="a number and a unit"):
        parse_bytes(f"{text}s")
    with pytest.raises(ConfigError, match="a number and a unit"):
        parse_bytes("80")  # of bytes it would never fit, and the plan would say so after minutes


REFUSED = {
    "": "--gpus must be >= 1",
    "--gpus 8 --memory 80 gigs": "a number and a unit",
    "--gpus 8 --machine h10": "did you mean H100?",
    "--gpus 8 --compile.mode eager": "plan reads the captured graph",
    "--gpus 8 --json none/plan.json": "there is no folder none",
    "--gpus 8 --json metrics.jsonl": "it is a .json file",
}


def test_what_cannot_be_planned_is_refused_at_once_without_torch():
    lines = [["plan", "llama3_debugmodel", *words.replace("80 gigs", "80gigs").split()] for words in REFUSED]
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY], input=json.dumps(lines), capture_output=True, text=True, check=True
    )
    for (code, _, err, seconds), reason in zip(json.loads(done.stdout), REFUSED.values(), strict=True):
        assert (code, reason in err) == (2, True), err
        assert seconds < 2

"""benchmarks/speed.py: what is run, and how targets are judged; the runs themselves need a GPU and minutes."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from monograph.bench import plan_modes
from monograph.config.json_form import dump_json
from monograph.config.overrides import apply_overrides, split_flags
from monograph.recipes.catalog import load_recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def speed():
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("speed", FOLDER / "speed.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules["speed"] = module
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("speed", None)


def row(recipe, kind, mode, rate, gib, seconds):
    return {
        "recipe": recipe,
        "kind": kind,
        "mode": mode,
        "tokens_per_second": rate,
        "peak_gib": gib,
        "first_step_seconds": seconds,
    }


def test_a_target_is_met_when_every_measurement_meets_it(speed):
    rows = [
        row("llama3_bench_1b", "fast", "fast", 67_100.0, 31.0, 9.0),
        row("llama3_bench_1b", "fast", "fast", 66_429.0, 31.0, 9.9),
        row("llama3_bench_1b", "artifact", "fast", 66_000.0, 31.0, 3.01),
        row("llama3_bench_1b", "layer", "fast", 66_000.0, 31.0, 9.0),
        row("llama3_bench_1b", "layer", "layer", 60_000.0, 40.0, 9.0),
    ]
    rate, gib, cold, artifact, layers = speed.judge(rows)
    assert rate.startswith("MISSED 1 of 2: ") and rate.endswith("67,100.00, 66,429.00 (1.0 % apart)")
    assert gib.startswith("met 2 of 2: ") and cold.startswith("met 2 of 2: ")
    assert artifact.startswith("MISSED 0 of 1: ") and "at most 3.0: 3.01" in artifact
    assert layers == "llama3_bench_1b: graph 1.100x as fast as layer with 0.775x the memory"


def test_every_kind_is_measured_as_often_as_asked_and_artifacts_are_made_once(speed, capsys, monkeypatch):
    asked = []

    def run(words):
        asked.append(words)
        if words[0] == "bench":
            modes = words[words.index("--modes") + 1].split(",")
            same = {"tokens_per_second": 1.0, "peak_gib": 2.0, "ms": 1.0, "spread": 0.1, "loss": 4.0}
            same |= {"first_step_seconds": 3.0, "first_step_shares": {"model": 1.0}}
            rows = [{"mode": mode, **same} for mode in modes]
            said = {"date": "today", "device": "none", "versions": {}, "command": words, "rows": rows}
            Path(words[words.index("--out") + 1]).write_text(json.dumps(said))

    monkeypatch.setattr(speed, "run", run)
    flags = ["--parallelism.reshard_after_forward", "false"]
    rows = speed.measure_recipe("some_model", flags, ["fast", "layer", "artifact"], times=2, steps=7)
    assert [words[0] for words in asked] == ["precompile", *["bench"] * 6]
    assert [each["mode"] for each in rows] == ["fast", "fast", "layer", "fast"] * 2
    folder = asked[0][asked[0].index("--out") + 1]
    assert [words[words.index("--compile.artifact") + 1] for words in asked if "--compile.artifact" in words] == [
        folder
    ] * 2
    assert asked[0][-2:] == speed.FAST.split(), "the artifact is made for what bench runs"
    assert {each["recipe"] for each in rows} == {"some_model"}
    assert capsys.readouterr().out.count("some_model") == 8


@pytest.mark.parametrize("recipe", ["llama3_bench_1b", "deepseek_v3_bench_moe"])
def test_artifacts_are_made_with_the_flags_that_fast_stands_for(speed, recipe):
    config = apply_overrides(load_recipe(recipe), split_flags(speed.RECIPES[recipe]))
    by_hand = apply_overrides(config, split_flags(speed.FAST.split()))
    assert dump_json(by_hand) == dump_json(plan_modes(config, ["fast"])["fast"])

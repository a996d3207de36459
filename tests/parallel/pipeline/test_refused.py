"""What a pipeline cannot do is refused in words, before torch is even imported where that is possible."""

import subprocess
import sys

import pytest
import torch

from monograph.commands.checks import check_bench, check_ranks
from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.errors import ConfigError
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from tests.kit.tiny import tiny

PIPED = {"parallelism.pipeline_parallel_degree": 2, "training.global_batch_size": 16}


def configure(changes):
    config = load_recipe("deepseek_v3_debugmodel")
    for path, value in {**PIPED, **changes}.items():
        config = replace_leaf(config, path, value)
    return config


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"compile.mode": "layer", "parallelism.pipeline_schedule": "zero_bubble"}, "compile.mode is layer"),
        ({"compile.mode": "eager", "parallelism.pipeline_schedule": "zbv"}, "compile.mode is eager"),
        ({"compile.mode": "eager", "parallelism.fsdp": "fsdp2"}, "parallelism.fsdp is fsdp2"),
        ({"passes.on": ("compile_whole",)}, "the pass compile_whole"),
        ({"parallelism.pipeline_schedule": "2f2b"}, "no pipeline schedule '2f2b'"),
        ({"parallelism.pipeline_schedule": "missing.csv"}, "cannot be read"),
        ({"parallelism.pipeline_stages": ("auto", "head")}, "pipeline_stages is auto head"),
        ({"parallelism.pipeline_stages": ("layer.3",)}, "has no unit 'layer.3'"),
        ({"parallelism.pipeline_virtual_stages": -1}, "pipeline_virtual_stages is -1"),
        ({"parallelism.pipeline_virtual_stages": 2}, "has 2 stages per rank"),
        ({"parallelism.pipeline_schedule": "gpipe", "parallelism.pipeline_virtual_stages": 40}, "the model has"),
        ({"parallelism.context_parallel_degree": 2}, "the degrees ask for 4 ranks"),
        ({"parallelism.pipeline_parallel_degree": 3}, "the degrees ask for 3 ranks"),
    ],
)
def test_a_pipeline_that_cannot_run_is_refused_by_the_field_that_asks_for_it(changes, words):
    config = configure(changes)
    with pytest.raises(ConfigError) as caught:
        check_config(config)
        check_ranks(config, ranks=2)
    assert words in str(caught.value)
    assert caught.value.do


@pytest.mark.parametrize(
    ("check", "more", "command"),
    [(check_bench, {"balanced_routing": False, "document_tokens": 0}, "bench")],
)
def test_commands_without_an_answer_for_pipelines_say_so(check, more, command):
    with pytest.raises(ConfigError, match=f"monograph {command}") as caught:
        check(configure({}), **more)
    assert caught.value.do == "--parallelism.pipeline_parallel_degree 1"


def test_a_rank_whose_parameters_are_all_frozen_is_refused_by_its_units(tmp_path):
    changes = {"compile.mode": "graph", "training.global_batch_size": 4, "training.freeze": ("embedding.*",)}
    config = tiny("llama3", tmp_path, changes, pipeline_parallel_degree=2, pipeline_stages=("layers.0",))
    message = "pipeline rank 0 has no parameter to train"
    with fake_groups(Mesh(pp=2), 1, torch.device("cpu")) as groups, pytest.raises(ConfigError, match=message):
        build_step(config, groups)


def test_a_schedule_that_does_not_fit_is_refused_within_two_seconds_and_without_torch():
    code = (
        "import sys\n"
        "from monograph.cli import main\n"
        "code = main(['train', 'llama3_debugmodel', '--ranks', '2', '--parallelism.pipeline_parallel_degree', '2',"
        " '--parallelism.pipeline_schedule', 'interleaved_1f1b', '--training.global_batch_size', '20'])\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert "5 micro-batches for 2 pipeline ranks" in done.stderr

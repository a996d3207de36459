"""What a run needs from outside is looked at before torch is imported, and by the library as by the command line."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from monograph.errors import CheckpointError, ConfigError, MonographError
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import train
from monograph.train import sinks
from monograph.train.checkpoint import manifest_file
from monograph.train.data import stream
from monograph.train.preflight import check_before_start
from tests.kit.ranks import pool
from tests.kit.runs import tiny_run
from tests.test_cli import RUN_MANY

RECIPE = ("train", "llama3_debugmodel")
MISSING = {
    "a dataset": (("--dataloader.dataset", "texs"), "did you mean 'texts'?"),
    "a validation set": (("--dataloader.validation_datasets", "a=texts", "b=nowhere.txt"), "'nowhere.txt' does not"),
    "a source of a mixture": (("--dataloader.mixture", "a=1:texts", "b=2:nowhere"), "'nowhere' does not exist"),
    "a tokenizer": (("--tokenizer.path", "nowhere.json"), "cannot read the tokenizer 'nowhere.json'"),
    "embeddings for the tokenizer": (("--model.vocab_size", "100"), "--model.vocab_size 259"),
    "a package": (("--metrics.wandb",), "pip install"),
    "a checkpoint": (("--checkpoint.load", "latest"), "there are no checkpoints in"),
    "a step": (("--checkpoint.load", "7"), "there is no checkpoint of step 7"),
    "a path": (("--checkpoint.load", "elsewhere"), "cannot load elsewhere"),
    "a path to a run": (("--checkpoint.load", "run"), "--checkpoint.load run/checkpoints"),
    "a device by its name": (("--debug.device", "gpu"), "did you mean --debug.device cuda?"),
    "an optimizer by its name": (("--optimizer.name", "muon"), "--optimizer package.module:Class"),
    "ranks of a mesh": (("--ranks", "3", "--parallelism.tensor_parallel_degree", "2"), "--ranks 4"),
    "ranks of a whole mesh": (
        ("--ranks", "3", "--parallelism.tensor_parallel_degree", "2", "--parallelism.data_parallel_shard_degree", "1"),
        "--ranks 2 ",
    ),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Every case in one process that has no torch: (exit code, what was said)."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "texts").mkdir()
    (folder / "texts" / "one.txt").write_text("some text " * 1000)
    (folder / "run" / "checkpoints" / "step-00000003").mkdir(parents=True)
    lines = [[*RECIPE, "--validator.interval", "5", *flags] for flags, _ in MISSING.values()]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", RUN_MANY],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=True,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["run", "texts"], "nothing was made"
    return {name: (code, err) for name, (code, _, err, _) in zip(MISSING, json.loads(done.stdout), strict=True)}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_said_before_torch_is_imported(answers, name):
    code, said = answers[name]
    assert code in (1, 2) and said.startswith("error: ")
    assert MISSING[name][1] in said


def test_another_model_and_an_extended_schedule_are_refused_before_anything_is_built(tmp_path):
    train(tiny_run(tmp_path / "run", {"training.steps": 3}))
    check_before_start(tiny_run(tmp_path / "run", {"training.steps": 3, "checkpoint.load": "latest"}))
    with pytest.raises(CheckpointError, match=r"model.rope.theta"):
        check_before_start(tiny_run(tmp_path / "run", {"checkpoint.load": "latest", "model.rope.theta": 7.0}))
    narrow = {"training.dtype": "bfloat16", "training.compute_dtype": "bfloat16", "checkpoint.load": "latest"}
    narrow |= {"optimizer.store_param_remainders": True}
    with pytest.raises(CheckpointError, match=r"--training.dtype float32 --optimizer.store_param_remainders false, or"):
        check_before_start(tiny_run(tmp_path / "run", narrow))
    check_before_start(tiny_run(tmp_path / "run", narrow | {"checkpoint.load_model_only": True}))
    for which in ("latest", "auto", "3", str(tmp_path / "run" / "checkpoints")):
        with pytest.raises(ConfigError, match="on_extend"):
            check_before_start(tiny_run(tmp_path / "run", {"training.steps": 6, "checkpoint.load": which}))


def test_a_start_reads_the_tensors_of_the_one_checkpoint_that_it_loads_once(tmp_path, monkeypatch):
    changes = {"training.steps": 3, "checkpoint.interval": 1}
    train(tiny_run(tmp_path / "run", changes))
    whole = []
    parse = manifest_file.parse_manifest
    monkeypatch.setattr(manifest_file, "parse_manifest", lambda data: whole.append(parse(data)) or whole[-1])
    train(tiny_run(tmp_path / "run", changes | {"checkpoint.load": "latest"}))
    assert [manifest.step for manifest in whole] == [3]


def hear_of_the_checkpoint(config) -> str:
    try:
        train(config)
    except MonographError as error:
        return error.what
    return ""


def test_a_checkpoint_that_is_not_there_is_refused_on_all_ranks_in_the_same_words(tmp_path, monkeypatch):
    """The first looks once they have met: one that looked before would leave the others waiting for it."""
    config = tiny_run(tmp_path / "run", {"checkpoint.load": "7"})
    with monkeypatch.context() as ranks:
        ranks.setenv("WORLD_SIZE", "2")
        check_before_start(config)
    one, other = pool.run(2, hear_of_the_checkpoint, config)
    assert one == other and "there is no checkpoint of step 7" in one


def test_data_that_a_checkpoint_does_not_fit_is_refused_before_a_model_is_built(tmp_path, monkeypatch):
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    monkeypatch.setattr("monograph.run.build_step", None)
    changes = {"training.seq_len": (16, "is 16"), "debug.seed": (7, "is 7"), "training.local_batch_size": (1, "keeps")}
    for field, (value, reason) in changes.items():
        with pytest.raises(MonographError, match=reason):
            train(tiny_run(tmp_path / "run", {"training.steps": 1, "checkpoint.load": "latest", field: value}))


def test_a_cuda_graph_that_is_required_without_a_gpu_is_refused_before_a_model_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr("monograph.run.build_step", None)
    changes = {"compile.mode": "graph", "compile.cuda_graph": "require", "debug.device": "cpu"}
    with pytest.raises(ConfigError, match=r"compile.cuda_graph is require"):
        train(tiny_run(tmp_path / "run", changes))


def test_a_run_without_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the folder that it is started in"):
        tiny_run(tmp_path, {"job.dump_folder": ""})


def test_a_checkpoint_that_a_killed_save_moved_aside_counts(tmp_path):
    train(tiny_run(tmp_path / "run", {"training.steps": 1}))
    checkpoints = tmp_path / "run" / "checkpoints"
    (checkpoints / "step-00000001").rename(checkpoints / ".old-step-00000001")
    config = tiny_run(tmp_path / "run", {"training.steps": 1, "checkpoint.load": "latest"})
    check_before_start(config)
    assert train(config).steps == 1


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_missing_package_is_installed_from_this_checkout(tmp_path, monkeypatch, package):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        check_before_start(tiny_run(tmp_path, {f"metrics.{package}": True}))
    check_install(error.value, package)


def test_the_package_of_hub_datasets_is_installed_from_this_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "find_spec", lambda name: None)
    with pytest.raises(MonographError) as error:
        check_before_start(tiny_run(tmp_path, {"dataloader.dataset": "hf:anything"}))
    check_install(error.value, "hf")


def check_install(error, extra):
    """The command names a checkout with that extra: the project's own, not a package of the same name."""
    root = re.search(rf"pip install -e '(.+)\[{extra}\]'", error.do).group(1)
    described = (Path(root) / "pyproject.toml").read_text()
    assert 'name = "monograph"' in described and re.search(rf"^{extra} = \[", described, re.M)


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("training.steps", "many", r"training.steps is 'many'"),
        ("optimizer.lr", float("inf"), r"optimizer.lr is inf"),
        ("training.steps", 0, "steps is 0"),
        ("training.seq_len", 10**6, "training.seq_len is 1000000 but model.rope.max_seq_len"),
    ],
)
def test_the_library_checks_its_config_as_the_command_line_does(tmp_path, path, value, match):
    config = tiny_run(tmp_path / "run")
    section, _, name = path.rpartition(".")
    setattr(getattr(config, section), name, value)
    with pytest.raises(ConfigError, match=match):
        train(config)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def launched(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


def test_a_port_in_use_is_said_in_words(launched, monkeypatch):

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("MASTER_PORT", str(taken.getsockname()[1]))
        with (
            pytest.raises(ConfigError, match=r"cannot meet at 127.0.0.1:\d+") as error,
            joined_groups(Mesh(), torch.device("cpu"), timeout_seconds=20),
        ):
            pass
    assert error.value.why == "another program uses that port" and "MASTER_PORT" in error.value.do


def test_what_a_launcher_did_not_set_is_named(launched, monkeypatch):

    monkeypatch.delenv("MASTER_PORT", raising=False)
    with (
        pytest.raises(ConfigError, match="cannot join the other ranks") as error,
        joined_groups(Mesh(), torch.device("cpu"), timeout_seconds=20),
    ):
        pass
    assert "MASTER_PORT" in error.value.why


@pytest.mark.parametrize("where", ["texts", "texts/run", "texts/more/run", "."])
def test_a_run_does_not_write_its_records_among_the_texts_of_a_dataset(tmp_path, monkeypatch, where):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("some text " * 100)
    monkeypatch.chdir(tmp_path)
    dataset = "." if where == "." else "texts"
    with pytest.raises(ConfigError, match=r"(?s)in the folder of the dataset .*choose a --job.dump_folder outside"):
        check_before_start(tiny_run(where, {"dataloader.dataset": dataset}))
    check_before_start(tiny_run("texts/.run", {"dataloader.dataset": "texts"}))


@pytest.mark.parametrize("field", ["dataloader.dataset", "tokenizer.path", "compile.artifact"])
def test_a_new_run_moves_no_folder_aside_that_holds_its_own_inputs(tmp_path, field):
    """The next start of the new run would look for them where they were."""
    train(tiny_run(tmp_path / "run", {"training.steps": 1, "checkpoint.enabled": False}))
    (tmp_path / "run" / "input").write_text("some text " * 100)
    changes = {field: str(tmp_path / "run" / "input")} | ({"compile.mode": "graph"} if "artifact" in field else {})
    with pytest.raises(ConfigError, match=r"(?s)lies in it.*choose another --job.dump_folder"):
        check_before_start(tiny_run(tmp_path / "run", changes))

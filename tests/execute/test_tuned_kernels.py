"""The tuned settings of a run: read once, taken along by artifacts, used on the kind of GPU they were tuned for."""

import logging
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from monograph.execute import tuned_kernels
from monograph.execute.artifact.folder import write_artifact
from monograph.execute.artifact.make import CUSTOM_CALLS, TUNED
from monograph.execute.artifact.manifest import ArtifactError
from monograph.execute.build import load_or_build_kernels
from monograph.execute.custom_kernels import KernelCall, find_calls, find_tunable_calls
from monograph.execute.tuned_kernels import load_tuned_kernels, render_for_artifact, tune_kernels
from monograph.execute.tuning_gpu import TuningGpu
from monograph.graph.tensor_meta import TensorMeta
from monograph.kernels.tuned_file import GpuKind, TunedKernel, find_gpu_kind, read_tuned, render_tuned, write_tuned
from monograph.kernels.tuning import Tunable, TunedKey, no_choices
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from tests.execute.artifacts import make_sections, open_folder
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare

H200 = GpuKind("NVIDIA H200", "9.0", "3.6.0", "0123456789abcdef")
SCALE = Tunable("scale", *({"group": group} for group in (16, 8, 4)))
FASTER = TunedKernel(TunedKey("scale", (3,)), {"group": 8}, 2.0, 1.5)


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """As in a new process with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned_kernels, "_loaded", {})
    with no_choices():
        yield


@pytest.fixture
def on_h200(monkeypatch):
    monkeypatch.setattr(tuned_kernels, "find_gpu_kind", lambda device: H200)


def make_artifact(folder, content):
    settings = {} if content is None else {TUNED: content}
    write_artifact(folder, make_sections(), {"step.json": b"{}", CUSTOM_CALLS: b"[]", **settings})
    return open_folder(folder)


def test_what_was_tuned_is_used_by_a_later_run_without_tuning(on_h200):
    write_tuned(H200, [FASTER])
    load_tuned_kernels(CPU)
    assert SCALE.choose(3) == {"group": 8}
    write_tuned(H200, [replace(FASTER, settings={"group": 4})])
    load_tuned_kernels(CPU)
    assert SCALE.choose(3) == {"group": 8}, "the file is read once in a process"


def test_an_artifact_takes_its_settings_along_to_a_gpu_of_the_same_kind(on_h200, tmp_path, monkeypatch):
    assert render_for_artifact(CPU) is None
    write_tuned(H200, [FASTER])
    tuned_kernels._loaded.clear()
    artifact = make_artifact(tmp_path / "artifact", render_for_artifact(CPU))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another machine"))
    tuned_kernels._loaded.clear()
    with no_choices():
        load_tuned_kernels(CPU)
        assert SCALE.choose(3) == {"group": 16}
        artifact.use_tuned_settings(CPU)
        assert SCALE.choose(3) == {"group": 8}


def test_on_another_gpu_the_settings_of_an_artifact_are_left_aside(on_h200, tmp_path, caplog):
    other = replace(H200, name="NVIDIA H100")
    artifact = make_artifact(tmp_path / "artifact", render_tuned(other, {FASTER.key: FASTER}))
    with caplog.at_level(logging.INFO):
        artifact.use_tuned_settings(CPU)
    assert SCALE.choose(3) == {"group": 16}
    assert "tuned for NVIDIA H100" in caplog.text
    write_tuned(H200, [replace(FASTER, settings={"group": 4})])
    tuned_kernels._loaded.clear()
    artifact.use_tuned_settings(CPU)
    assert SCALE.choose(3) == {"group": 4}, "its own cache is used instead"


def test_kernels_of_an_artifact_that_was_not_tuned_are_launched_as_they_were_built(on_h200, tmp_path):
    write_tuned(H200, [FASTER])
    load_tuned_kernels(CPU)
    assert SCALE.choose(3) == {"group": 8}
    make_artifact(tmp_path / "artifact", None).use_tuned_settings(CPU)
    assert SCALE.choose(3) == {"group": 16}, "otherwise they would be built again"


@pytest.mark.parametrize("content", [b"{}", b"[" * 100_000, b"\xff"])
def test_an_artifact_with_other_settings_is_refused_with_a_reason(content, tmp_path):
    with pytest.raises(ArtifactError, match="tuned settings cannot be read"):
        make_artifact(tmp_path / "artifact", content).use_tuned_settings(CPU)


def test_on_a_cpu_a_run_says_that_there_is_nothing_to_tune(tmp_path, caplog):
    config = small("llama3", tmp_path, {"compile.mode": "graph", "compile.tune_kernels": True, "model.n_layers": 1})
    with fake_groups(Mesh(), 0, CPU) as groups, caplog.at_level(logging.INFO):
        prepared = prepare(config, groups)
        graph = prepared.capture()
        assert set(find_calls(graph)) < set(find_tunable_calls(graph)), "attention has settings to tune, too"
        load_or_build_kernels([graph], prepared.settings, groups, None)
    assert "nothing to tune on cpu" in caplog.text


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_the_command_needs_a_gpu_and_says_so_without_torch(device, tmp_path):
    code = "import sys; from monograph.machine import gpu_files; "
    code += f"gpu_files.DEVICES = __import__('pathlib').Path({str(tmp_path)!r}); from monograph.cli import main; "
    code += f"print(main(['tune', 'llama3_debugmodel', '--debug.device', '{device}']), 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "2 False\n"
    assert "kernels are tuned on GPUs" in run.stderr


@pytest.mark.gpu
def test_a_tuned_op_has_the_same_bits_and_is_tuned_once():
    device = torch.device("cuda", 0)
    rows = TensorMeta(torch.bfloat16, (4096, 4096), (8192, 1), device)
    call = KernelCall("swiglu", (rows, rows))
    run = TuningGpu(device).make_run(call)
    wanted = run()
    (found,) = tune_kernels([call], device)
    assert (found.key.kernel, found.key.sizes) == ("swiglu", (4096, 4096, 2))
    assert 0 < found.best_ms <= found.default_ms
    assert torch.equal(run(), wanted)
    assert read_tuned(find_gpu_kind(device)) == {found.key: found}
    assert tune_kernels([call], device) == []

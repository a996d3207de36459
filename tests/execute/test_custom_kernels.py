"""Kernels of our own that travel with an artifact: found in the graph, written down, built, put somewhere else."""

import json
import os

import pytest
import torch

from monograph.compat.triton_cache import put_kernels, take_kernels, triton_folder
from monograph.execute.artifact.fields import OWN_KERNELS
from monograph.execute.artifact.folder import write_artifact
from monograph.execute.artifact.make import CUSTOM_CALLS, make_custom_kernels
from monograph.execute.artifact.manifest import ArtifactError
from monograph.execute.custom_kernels import (
    KernelCall,
    build_calls,
    calls_from_data,
    calls_to_data,
    find_calls,
    find_updates,
)
from monograph.graph.encode import GraphFileError
from monograph.graph.tensor_meta import TensorMeta
from monograph.kernels import norm_on_gpu, square_sum_on_gpu, swiglu_on_gpu, update_on_gpu
from monograph.kernels.update import StateForm
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from tests.execute.artifacts import make_sections, open_folder
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare

FUSED = {"compile.mode": "graph", "model.kernels": "fused", "training.compute_dtype": "bfloat16"}
GPU = torch.device("cuda")
ROWS = TensorMeta(torch.bfloat16, (3, 4096), (4096, 1), GPU)
READ_AT = {"update": 1, "square_sum": 0}
"""Where calls have the gradient."""
CALLS = [
    KernelCall("swiglu", (ROWS, ROWS)),
    KernelCall(
        "norm_backward",
        (
            ROWS,
            ROWS,
            TensorMeta(torch.bfloat16, (4096,), (1,), GPU),
            TensorMeta(torch.float32, (3, 1), (1, 1), GPU),
            None,
        ),
    ),
    KernelCall("square_sum", (TensorMeta(torch.bfloat16, (1,), (1,), GPU),)),
    KernelCall(
        "update",
        (*(TensorMeta(dtype, (1,), (1,), GPU) for dtype in (torch.float32, *[torch.bfloat16] * 2)), None, None),
    ),
]


@pytest.fixture
def graph(tmp_path):
    config = small("llama3", tmp_path, {**FUSED, "model.n_layers": 2})
    with fake_groups(Mesh(), 0, CPU) as groups:
        yield prepare(config, groups).capture()


def test_every_kind_of_call_in_a_graph_is_found_once(graph):
    calls = find_calls(graph)
    assert len(calls) == len(set(calls))
    names = [call.name for call in calls]
    assert set(names) == {"swiglu", "swiglu_backward", "rope", "norm", "norm_backward", "chunked_cross_entropy"}
    turned = [call for call in calls if call.name == "rope"]
    assert {call.args[-1] for call in turned} == {False, True}, "forward and backward"
    assert all(isinstance(arg, TensorMeta | bool | int | float | None) for call in calls for arg in call.args)


def test_what_a_compiler_replaces_is_not_built(graph):
    assert {call.name for call in find_calls(graph, is_compiled=True)} == {"chunked_cross_entropy"}


def test_the_optimizer_is_called_once_for_every_pair_of_dtypes(graph):
    wide = torch.float32
    for state, forms in (
        (StateForm(), [wide, wide, wide, None, None]),
        (StateForm(torch.bfloat16, has_remainders=True), [wide, wide, torch.bfloat16, None, torch.int16]),
    ):
        found = {call.name: [form and form.dtype for form in call.args] for call in find_updates(graph, state)}
        assert found == {"update": forms, "square_sum": [wide]}


def test_sums_of_gradients_that_are_wider_get_kernels_of_their_own(tmp_path):
    config = small("llama3", tmp_path, {**FUSED, "model.n_layers": 2, "training.dtype": "bfloat16"})
    with fake_groups(Mesh(), 0, CPU) as groups:
        graph = prepare(config, groups).capture()
    found = find_updates(graph, StateForm(), torch.float32)
    gradients = {name: [c.args[each].dtype for c in found if c.name == name] for name, each in READ_AT.items()}
    assert gradients == {"update": [torch.bfloat16, torch.float32], "square_sum": [torch.bfloat16, torch.float32]}


def test_calls_are_read_back_as_they_were_written(graph):
    calls = [*find_calls(graph), *find_updates(graph, StateForm())]
    calls.append(KernelCall("float8_cast", (ROWS, torch.float8_e4m3fn, True, False)))
    assert calls_from_data(json.loads(json.dumps(calls_to_data(calls)))) == calls


@pytest.mark.parametrize(
    "damaged",
    [
        {"a": 1},
        [["swiglu"]],
        [["system", []]],
        [["swiglu", ["x"]]],
        [["swiglu", [None, None]]],
        [["swiglu", []]],
        [["swiglu", [1, 2]]],
        [["float8_cast", [["bfloat16", [4, 4], [4, 1], "cuda"], 24, True, False]]],
        [["float8_cast", [["bfloat16", [4, 4], [4, 1], "cuda"], "float7", True, False]]],
        [["swiglu", [["bfloat16", [4], [1, 1], "cuda"], ["bfloat16", [4], [1], "cuda"]]]],
        [["swiglu", [["bfloat16", [-4], [1], "cuda"], ["bfloat16", [4], [1], "cuda"]]]],
        [[["swiglu"], []]],
        7,
        None,
    ],
)
def test_anything_else_is_refused(damaged):
    with pytest.raises(GraphFileError):
        calls_from_data(damaged)


def test_lists_of_kernels_follow_their_files_to_another_folder(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "ABC").mkdir(parents=True)
    for name in ("k.cubin", "k.json", "k.ttir"):
        (old / "ABC" / name).write_text(name)
    listed = {name: str(old / "ABC" / name) for name in ("k.cubin", "k.json", "k.ttir")}
    (old / "ABC" / "__grp__k.json").write_text(json.dumps({"child_paths": listed}))
    files = take_kernels(old)
    assert set(files) == {"ABC/k.cubin", "ABC/k.json", "ABC/__grp__k.json"}
    assert str(old).encode() not in b"".join(files.values()), "nothing says where they were built"
    put_kernels(new, files)
    paths = json.loads((new / "ABC" / "__grp__k.json").read_text())["child_paths"]
    assert paths == {name: str(new / "ABC" / name) for name in ("k.cubin", "k.json")}
    assert all(os.path.exists(path) for path in paths.values())


@pytest.mark.parametrize(
    "listed",
    [
        b"{}",
        b"\xff",
        b"[]",
        b'{"child_paths": {"../x.json": 1}}',
        b'{"child_paths": {"/etc/x.json": 1}}',
        b'{"child_paths": {"y.json": 1}}',
    ],
)
def test_a_list_of_anything_but_the_files_beside_it_is_refused(listed, tmp_path):
    with pytest.raises(ValueError):
        put_kernels(tmp_path, {"ABC/k.json": b"{}", "ABC/__grp__k.json": listed})


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_nothing_is_built_and_nothing_is_written_down():
    assert make_custom_kernels(CALLS) == {}


@pytest.mark.gpu
def test_kernels_that_were_put_somewhere_else_are_found_there(tmp_path):
    forget_kernels()
    files = make_custom_kernels(CALLS)
    assert CUSTOM_CALLS in files
    kernels = {name.removeprefix(OWN_KERNELS): content for name, content in files.items() if name != CUSTOM_CALLS}
    assert any(name.endswith(".cubin") for name in kernels)
    put_kernels(tmp_path, kernels)
    before = {path for path in tmp_path.rglob("*") if path.suffix == ".cubin"}
    forget_kernels()
    with triton_folder(tmp_path):
        build_calls(CALLS)
    assert {path for path in tmp_path.rglob("*") if path.suffix == ".cubin"} == before, "nothing was built again"


def forget_kernels():
    """As in a new process."""
    kernels = (swiglu_on_gpu.swiglu_kernel, norm_on_gpu.norm_backward_kernel, square_sum_on_gpu.square_sum_kernel)
    for kernel in (*kernels, update_on_gpu.update_kernel):
        kernel.device_caches.clear()


@pytest.mark.parametrize("calls", [b'[["system", []]]', b"7", b"[" * 100_000, b"\xff"])
def test_an_artifact_with_other_calls_is_refused_with_a_reason(calls, tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(), {"step.json": b"{}", CUSTOM_CALLS: calls})
    artifact = open_folder(tmp_path / "artifact")
    with pytest.raises(ArtifactError, match="own kernels cannot be read"):
        artifact.load_custom_kernels()

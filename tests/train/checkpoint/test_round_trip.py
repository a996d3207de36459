"""What is saved comes back bit for bit."""

import json

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from monograph.errors import CheckpointError
from monograph.train.checkpoint.manifest import DTYPES
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.reader import SafetensorsReader
from monograph.train.checkpoint.store import Store
from monograph.train.checkpoint.tensor_file import FILE_DTYPES, TensorSpec, find_dtype, split_files
from monograph.train.checkpoint.verify import verify_checkpoint
from monograph.train.checkpoint.writer import Label, SafetensorsWriter, StagedSavePlanner, save_plan
from tests.train.checkpoint.disks import blank, make_manager, make_state, same, save_steps


def round_trip(folder, state, **settings):
    live = blank(state)
    with make_manager(folder, **settings) as manager:
        manager.save(3, state, {})
        manager.load(3, live)
    return live


@pytest.mark.parametrize("async_save", [False, True])
def test_every_tensor_comes_back_bit_for_bit(tmp_path, async_save):
    state = make_state(1)
    assert same(round_trip(tmp_path, state, async_save=async_save), state)


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_every_element_type_comes_back_bit_for_bit(tmp_path, name):
    bits = torch.arange(256, dtype=torch.uint8) if name != "bool" else torch.arange(256, dtype=torch.uint8) % 2
    tensor = bits.view(find_dtype(name))
    live = {"x": torch.zeros(256, dtype=torch.uint8).view(find_dtype(name))}
    with make_manager(tmp_path) as manager:
        manager.save(1, {"x": tensor}, {})
        manager.load(1, live)
    assert same(live, {"x": tensor})


def test_nan_payloads_infinities_and_negative_zero_are_kept(tmp_path):
    bits = torch.tensor([0x7FC00001, 0x7F800000, -0x80000000, 0x00000001, -1], dtype=torch.int64).to(torch.int32)
    state = {"x": bits.view(torch.float32)}
    assert same(round_trip(tmp_path, state), state)


def test_strided_views_scalars_and_parameters_come_back(tmp_path):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": base.t(),
        "sliced": base[1:3, ::2],
        "expanded": base[:1].expand(5, 6),
        "scalar": torch.tensor(5),
        "parameter": torch.nn.Parameter(torch.randn(3, 3)),
        "empty": torch.zeros(3, 0, 2, dtype=torch.int64),
    }
    live = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in state.items()}
    live["parameter"] = torch.nn.Parameter(live["parameter"])
    live["transposed"] = torch.zeros(4, 6).t()
    with make_manager(tmp_path) as manager:
        manager.save(1, state, {})
        manager.load(1, live)
    assert all(live[name].equal(state[name]) for name in state)
    assert live["parameter"].requires_grad
    assert not live["transposed"].is_contiguous(), "loading fills the live tensor where it lies"


def test_many_tensors_come_back(tmp_path):
    state = {f"model/layers.{index}.weight": torch.full((index % 7, 3), float(index)) for index in range(500)}
    assert same(round_trip(tmp_path, state), state)


def test_values_come_back_as_they_were(tmp_path):
    values = {"step": 3, "cursor": {"epoch": 1, "sample": 12345678901234}, "lr": 0.1 + 0.2, "list": [None, True, "ü"]}
    with make_manager(tmp_path) as manager:
        manager.save(3, make_state(1), values)
        assert manager.load(3, blank(make_state(1))).values == values


@pytest.mark.parametrize("value", [float("nan"), (1, 2), {1: 2}, {1, 2}, torch.ones(1)])
def test_values_that_json_would_change_are_refused_at_once(tmp_path, value):
    with make_manager(tmp_path, async_save=True) as manager, pytest.raises(CheckpointError, match="value"):
        manager.save(1, make_state(1), {"bad": value})


@pytest.mark.parametrize("name", ["", "__metadata__", "a@0"])
def test_names_the_format_needs_for_itself_are_refused(tmp_path, name):
    with make_manager(tmp_path) as manager, pytest.raises(CheckpointError, match="cannot be saved"):
        manager.save(1, {name: torch.ones(2)}, {})
    assert not list(tmp_path.glob("*step*"))


def test_an_element_type_no_file_can_hold_is_refused(tmp_path):
    with make_manager(tmp_path) as manager, pytest.raises(CheckpointError, match=r"x cannot be saved\n.*complex64"):
        manager.save(1, {"x": torch.ones(2, dtype=torch.complex64)}, {})


def test_a_checkpoint_is_plain_safetensors_and_json(tmp_path):
    save_steps(tmp_path, 5)
    stored = load_file(tmp_path / "step-00000005" / "rank-00000.safetensors")
    full = {name: tensor for name, tensor in make_state(5).items() if tensor.numel()}
    assert same(stored, full)
    assert json.loads((tmp_path / "step-00000005" / "manifest.json").read_bytes())["step"] == 5


def test_a_large_state_is_split_over_several_files(tmp_path):
    state = {f"t{index}": torch.full((4, 4), float(index)) for index in range(5)}
    store = Store(tmp_path)
    writer = SafetensorsWriter(store, Label(1, 1, "run", {}), max_file_bytes=130)
    save_plan(state, StagedSavePlanner(), writer, Ranks())
    assert sorted(path.name for path in store.step_path(1).iterdir()) == [
        "manifest.json",
        "rank-00000-001.safetensors",
        "rank-00000-002.safetensors",
        "rank-00000-003.safetensors",
    ]
    live = blank(state)
    with make_manager(tmp_path) as manager:
        manager.load("latest", live)
    assert same(live, state)


def test_files_are_filled_in_order_and_never_beyond_their_limit():
    specs = [TensorSpec(str(index), torch.uint8, (size,)) for index, size in enumerate([3, 3, 9, 1, 5, 5])]
    files = split_files(specs, 6)
    assert [spec for file in files for spec in file] == specs
    assert [[spec.num_bytes for spec in file] for file in files] == [[3, 3], [9], [1, 5], [5]]


def test_each_element_type_has_one_name_in_files_and_one_in_the_manifest():
    assert {str(dtype).removeprefix("torch.") for dtype in FILE_DTYPES.values()} == DTYPES


def test_torch_distributed_checkpoint_itself_can_use_our_storage(tmp_path):
    store, state = Store(tmp_path), make_state(4)
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, storage_writer=SafetensorsWriter(store, Label(4, 1, "run", {})), planner=StagedSavePlanner())
    path = store.step_path(4)
    live = blank(state)
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(live, storage_reader=SafetensorsReader(path, verify_checkpoint(path)))
    assert same(live, state)


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("async_save", [False, True])
def test_distributed_tensors_of_one_rank_and_plain_ones_are_the_same_on_disk(tmp_path, mesh, async_save):
    full = {"a": torch.randn(5, 3), "b": torch.randn(7)}
    sharded = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in full.items()}
    with make_manager(tmp_path, async_save=async_save) as manager:
        manager.save(1, sharded, {})
        plain = blank(full)
        manager.load(1, plain)
        assert same(plain, full)
        again = {name: distribute_tensor(torch.zeros_like(t), mesh, [Replicate()]) for name, t in full.items()}
        manager.load(1, again)
    assert all(isinstance(tensor, DTensor) for tensor in again.values())
    assert same({name: tensor.to_local() for name, tensor in again.items()}, full)

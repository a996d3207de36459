"""Weights with NaN or infinities are refused by the name of the tensor, wherever they are read."""

import os

import pytest
import torch

from monograph.errors import CheckpointError
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.finite import find_non_finite
from monograph.train.checkpoint.hf_export import export_hf
from monograph.train.checkpoint.hf_import import import_hf
from monograph.train.checkpoint.hf_storage_reader import HfStorageReader
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.manager import CheckpointManager
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.reader import load_plan
from tests.train.checkpoint.theirs import read_all, replace, write_theirs

NAME, OURS = "model.layers.1.mlp.gate_proj.weight", "model/layers.1.feed_forward.w1.weight"
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn)


def write_with(folder, value):
    """A model in which one element of one tensor has this value."""
    write_theirs(folder, "llama")
    tensors = read_all(folder)
    tensors[NAME][3, 4] = value
    replace(folder, tensors)


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_bad_element_is_found_in_every_type(dtype):
    good = torch.arange(-300, 300).clamp(-240, 240).to(dtype)
    assert find_non_finite(good) == "" and find_non_finite(good[:0]) == ""
    for value, word in ((torch.nan, "NaN"), (torch.inf, "inf"), (-torch.inf, "-inf")):
        bad = good.float()
        bad[417] = value
        if dtype != torch.float8_e4m3fn or word == "NaN":
            assert find_non_finite(bad.to(dtype)) == word
    assert find_non_finite(torch.tensor([torch.inf, torch.nan])) == "NaN"
    assert find_non_finite(torch.arange(3)) == ""


def test_a_number_too_large_for_the_new_type_is_found():
    assert "70000, which float16" in find_non_finite(torch.tensor([-70000.0]), torch.float16)
    assert find_non_finite(torch.tensor([-70000.0]), torch.bfloat16) == ""


@pytest.mark.parametrize(("value", "word"), [(torch.nan, "NaN"), (-torch.inf, "-inf")])
def test_imports_name_the_tensor_and_leave_nothing(tmp_path, value, word):
    write_with(tmp_path / "theirs", value)
    with pytest.raises(CheckpointError, match=rf"{NAME} in .*theirs holds {word}"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")
    assert os.listdir(tmp_path) == ["theirs"]


def test_imports_refuse_weights_that_overflow_the_type_asked_for(tmp_path):
    write_with(tmp_path / "theirs", 1e6)
    with pytest.raises(CheckpointError, match=rf"{NAME} .*1e\+06, which float16 cannot hold"):
        import_hf(tmp_path / "theirs", tmp_path / "ours", dtype=torch.float16)
    import_hf(tmp_path / "theirs", tmp_path / "ours", dtype=torch.bfloat16)
    with pytest.raises(CheckpointError, match=r"w1\.weight .*which float16 cannot hold"):
        export_hf(tmp_path / "ours", tmp_path / "back", dtype=torch.float16)


def test_loads_from_a_hugging_face_folder_name_the_tensor(tmp_path):
    write_with(tmp_path / "theirs", torch.nan)
    reader = HfStorageReader(HfWeights(tmp_path / "theirs"))
    with pytest.raises(CheckpointError, match=f"{NAME} in .* holds NaN"):
        load_plan({OURS: torch.zeros(40, 32)}, reader, Ranks())


def test_loads_from_a_checkpoint_refuse_all_but_masks_and_optimizer_state(tmp_path):
    good = {"model/mask": torch.tensor([0.0, -torch.inf]), "optimizer/m/w": torch.tensor([torch.nan])}
    with CheckpointManager(CheckpointConfig(), folder=tmp_path) as manager:
        manager.save(1, good, {})
        manager.load(1, {"model/mask": torch.tensor([-torch.inf, 0.0]), "optimizer/m/w": torch.ones(1)})
        with pytest.raises(CheckpointError, match=r"model/mask in .*step-00000001 holds -inf"):
            manager.load(1, {name: torch.ones_like(value) for name, value in good.items()})
        manager.save(2, {"model/w": torch.tensor([0.0, torch.nan])}, {})
        with pytest.raises(CheckpointError, match=r"model/w in .*step-00000002 holds NaN"):
            manager.load(2, {"model/w": torch.ones(2)})

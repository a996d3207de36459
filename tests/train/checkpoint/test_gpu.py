"""State that lives on a GPU is saved, in the background too, and comes back bit for bit."""

import pytest
import torch

from monograph.train.checkpoint.staging import Staging
from tests.train.checkpoint.disks import blank, make_manager, make_state, same

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def to_gpu(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.cuda() for name, tensor in state.items()}


@pytest.mark.parametrize("async_save", [False, True])
def test_state_on_a_gpu_comes_back_bit_for_bit(tmp_path, async_save):
    live = to_gpu(make_state(1) | {"model/big": torch.randn(2048, 2048)})
    expected = {name: tensor.cpu() for name, tensor in live.items()}
    with make_manager(tmp_path, async_save=async_save) as manager:
        manager.save(1, live, {})
        for tensor in live.values():
            tensor.zero_()
        manager.wait()
        target = to_gpu(blank(expected))
        manager.load(1, target)
    assert all(tensor.is_cuda for tensor in target.values())
    assert same({name: tensor.cpu() for name, tensor in target.items()}, expected)


def test_staging_waits_for_work_that_is_still_running_on_the_gpu():
    weight = torch.randn(4096, 4096, device="cuda")
    matmul = weight
    for _ in range(20):
        matmul = matmul @ weight * 1e-2
    staged = Staging().stage({"matmul": matmul})["matmul"]
    copy = staged.clone()
    matmul.zero_()
    torch.cuda.synchronize()
    assert staged.is_pinned()
    assert copy.equal(staged)
    assert copy.any()

"""Which device a process trains on: the one that was asked for, and never a CPU because a driver is broken."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.execute import device
from monograph.execute.device import check_allocator, find_device


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A machine with two GPUs that torch cannot use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(device, "DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()


def test_a_gpu_that_torch_cannot_use_is_an_error_and_no_run_on_the_cpu(broken, tmp_path):
    with pytest.raises(ConfigError, match=f"this machine has {tmp_path}/nvidia0, {tmp_path}/nvidia1, and torch cannot"):
        find_device("auto")


def test_a_torch_for_cpus_computes_on_the_cpu_whatever_gpus_there_are(broken, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert find_device("auto") == torch.device("cpu")


def test_a_cpu_that_was_asked_for_is_taken_whatever_gpus_there_are(broken, monkeypatch):
    assert find_device("cpu") == torch.device("cpu")
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert find_device("auto") == torch.device("cpu")


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_recorded_collectives_are_refused_in_expandable_segments_unless_nccl_registers_nothing(monkeypatch, name):
    gpu = torch.device("cuda", 0)
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments:True")
    with pytest.raises(ConfigError, match="expandable_segments") as refused:
        check_allocator(gpu, 2)
    assert "NCCL_GRAPH_REGISTER=0" in refused.value.do
    check_allocator(torch.device("cpu"), 2)
    check_allocator(gpu, 1)
    monkeypatch.setenv("NCCL_GRAPH_REGISTER", "0")
    check_allocator(gpu, 2)

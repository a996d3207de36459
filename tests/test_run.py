"""From a config to a step: what is said on the way."""

import logging
import warnings

import pytest
import torch

from monograph.execute import device
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step
from tests.kit.tiny import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "has_native_matmul"), [("bfloat16", False), ("bfloat16", True), ("float32", False)])
def test_a_processor_without_narrow_matmuls_is_named_before_the_first_step(
    dtype, has_native_matmul, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_native_matmul)
    config = tiny("llama3", tmp_path, {"training.compute_dtype": dtype})
    with caplog.at_level(logging.WARNING, "monograph"), joined_groups(Mesh(), CPU) as groups:
        build_step(config, groups)
    is_slow = dtype == "bfloat16" and not has_native_matmul
    assert ("has no native bfloat16 matmul" in caplog.text and "compute_dtype float32" in caplog.text) == is_slow


def test_what_was_said_is_not_said_again_by_torch(monkeypatch):
    monkeypatch.setattr(device, "has_native_matmul", lambda *_: False)
    text = "mkldnn_matmul failed, switching to BLAS gemm:mkldnn_matmul: bf16 path needs a cpu with bf16 support\n"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        device.warn_of_slow_matmuls(CPU, torch.bfloat16)
        warnings.warn(text + "frame #0: ...", UserWarning, stacklevel=1)
        warnings.warn("mkldnn_matmul failed for another reason", UserWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == ["mkldnn_matmul failed for another reason"]

"""Every torch API we use that is private, or differs between the versions we serve. Checked on 2.11 and 2.13."""

import torch
import torch.nn.functional as F
from torch import Tensor


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [n, in] by weights [groups, in, out]: group g multiplies the rows from ends[g - 1] to ends[g] (int32).

    Public as torch.nn.functional.grouped_mm since 2.10; here because what it accepts still changes.
    """
    return F.grouped_mm(rows, weights, offs=ends)


def has_grouped_mm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether grouped_mm serves this device and dtype without reading the offsets on the host.

    CUDA: a real kernel from compute capability 9.0 on; below it torch copies the offsets to the host. Without a GPU in
    this process, CUDA tensors are fake ones and stand for a machine that has one. CPU: a loop inside torch.
    """
    if dtype != torch.bfloat16:
        return False
    if device.type == "cuda":
        return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "cpu"

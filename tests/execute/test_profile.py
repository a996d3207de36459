"""Kernels are counted once, under the op that launched them, whatever numbers other events have."""

from dataclasses import dataclass

import pytest
from torch.autograd import DeviceType

from monograph.execute.profile import STEPS, add_up, find_kind


@dataclass
class Event:
    id: int
    name: str
    cpu_parent: "Event | None" = None
    sequence_nr: int = -1
    device_type: DeviceType = DeviceType.CPU


def shares(table):
    return {share.name: (share.ms * STEPS, share.calls * STEPS) for share in table}


def test_a_kernel_belongs_to_the_range_of_its_op_and_is_counted_once():
    block = Event(1, "@ layers.3.mlp forward")
    matmul = Event(2, "aten::mm", block, sequence_nr=7)
    launch = Event(2, "cudaLaunchKernel", Event(9, "aten::add"))
    back = Event(4, "autograd::engine::evaluate_function: MmBackward0", sequence_nr=7)
    back_matmul = Event(5, "aten::mm", back)
    seen_from_gpu = Event(2, "gemm", device_type=DeviceType.CUDA)
    compiled = Event(6, "triton_poi_fused_add_0", block)
    kernels = [(2, "gemm", 1000.0), (5, "gemm", 2000.0), (77, "fill", 500.0), (1, "@ layers.3.mlp forward", 9000.0)]
    kernels.append((6, "triton_poi_fused_add_0", 250.0))
    profile = add_up([block, matmul, launch, back, back_matmul, seen_from_gpu, compiled], kernels)
    assert profile.ms * STEPS == pytest.approx(3.75)
    assert shares(profile.by_path) == {
        "layers.*.mlp forward": (1.25, 2),
        "layers.*.mlp backward": (2.0, 1),
        "outside of the model": (0.5, 1),
    }
    assert shares(profile.by_kind) == {"matmuls": (3.0, 2), "copies": (0.5, 1), "compiled": (0.25, 1)}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("triton_red_fused__log_softmax__to_copy_0 ", "compiled"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop aten::_cudnn_attention_backward", "attention"),
        ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN aten::mm", "matmuls"),
        ("cutlass::device_kernel aten::_grouped_mm", "grouped matmuls"),
        ("multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata> aten::_fused_adamw_", "optimizer"),
        ("vectorized_elementwise_kernel<silu> aten::silu", "pointwise and sums"),
    ],
)
def test_what_a_kernel_does_is_told_by_its_name(name, kind):
    assert find_kind(name) == kind

"""What launches our kernels, without a GPU: Triton is fake, tensors have no memory, and torch's compiler is left
where it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.execute.build import find_custom_calls
from monograph.execute.custom_kernels import calls_to_data
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare

ROOT = Path(__file__).parents[2]
FAST = {
    "compile.mode": "graph",
    "model.kernels": "fused",
    "training.compute_dtype": "bfloat16",
    "compile.numerics": "fast",
}
PRETEND = """
import json, sys, types
from contextlib import nullcontext
from unittest.mock import MagicMock

class Kernel:
    def __init__(self, function):
        self.name = function.__name__

    def warmup(self, *args, grid, **settings):
        assert not any(isinstance(arg, torch.Tensor) for arg in args), "a tensor's dtype is enough"
        built.append(self.name)

built = []
triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
triton.jit = lambda function=None, **_: Kernel(function) if function else Kernel
triton.cdiv = lambda a, b: -(-a // b)
triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length()
triton.AsyncCompileMode = lambda pool, ignore_errors: nullcontext()
triton.FutureKernel = ()
triton.language, language.constexpr = language, int

gluon = [MagicMock() for _ in range(4)]
names = ["", ".language", ".language.nvidia.hopper", ".nvidia.hopper"]
for name, module in zip(names, gluon):
    sys.modules["triton.experimental.gluon" + name] = module
gluon[0].jit, gluon[0].language = triton.jit, gluon[1]
sys.modules["triton.experimental"] = types.SimpleNamespace(gluon=gluon[0])

import torch

sys.modules |= {"triton": triton, "triton.language": language}
import monograph.execute.custom_kernels as own

torch.cuda.is_available = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device = lambda index: nullcontext()
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(major=CAPABILITY, multi_processor_count=1)
own.build_calls(own.calls_from_data(json.load(sys.stdin)))
print(json.dumps([built, "torch._dynamo" in sys.modules]))
"""
OF_ALL = {"norm_kernel", "norm_backward_kernel", "swiglu_kernel", "swiglu_backward_kernel", "cross_entropy_kernel"}
OF_UPDATES = {"update_kernel", "square_sum_kernel"}
OF_ROWS = {"sum_kernel", "combine_kernel", "combine_backward_kernel"}
OF_HOPPER = {"matmul_swiglu_kernel", "matmul_swiglu_backward_kernel"}
OF_EXPERTS = {"expert_matmul_kernel", "expert_tiles_kernel"}
LLAMA = OF_ALL | OF_UPDATES | {"rope_kernel", "rope_packed_kernel"}
KERNELS = {
    ("llama3", 8): LLAMA,
    ("llama3", 9): LLAMA - {"swiglu_kernel", "swiglu_backward_kernel"} | OF_HOPPER,
    ("deepseek_v3", 8): OF_ALL | OF_UPDATES | OF_ROWS | {"join_kernel", "split_kernel"},
    ("deepseek_v3", 9): OF_ALL | OF_UPDATES | OF_ROWS | OF_HOPPER | OF_EXPERTS | {"join_kernel", "split_kernel"},
}
"""Of a model on a GPU of a compute capability."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "capability"),
    [pytest.param(*case, marks=() if case == ("llama3", 9) else pytest.mark.long) for case in KERNELS],
)
def test_kernels_are_built_from_forms_alone_and_without_torchs_compiler(model, capability, tmp_path):
    """To import it takes half a second of every start from an artifact; torch does it for the first fake tensor."""
    config = small(model, tmp_path, FAST, experts="grouped")
    with fake_groups(Mesh(), 0, CPU) as groups:
        prepared = prepare(config, groups)
        calls = find_custom_calls(prepared.capture_and_pass().graph, prepared.settings)
    done = subprocess.run(
        [sys.executable, "-c", PRETEND.replace("CAPABILITY", str(capability))],
        input=json.dumps(calls_to_data(calls)),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    built, is_compiler_imported = json.loads(done.stdout)
    assert set(built) == KERNELS[model, capability]
    assert not is_compiler_imported
    are_long = [name in OF_HOPPER for name in built if name in OF_HOPPER or name.startswith("norm")]
    assert are_long == sorted(are_long, reverse=True), "what takes longest is begun first"

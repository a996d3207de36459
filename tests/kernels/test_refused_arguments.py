"""Launchers refuse what a kernel would read beyond its end, or write in another dtype than the reference.

Graph files are checked before (monograph/graph/verify_kernels.py); a direct call is checked here, before anything is
launched, so that a CPU can see it.
"""

import pytest
import torch

from monograph.compat.triton import HAS_TRITON
from monograph.errors import ConfigError
from monograph.kernels import (
    chunked_cross_entropy_on_gpu,
    clamped_swiglu_on_gpu,
    embedding_rows_on_gpu,
    expert_bias_on_gpu,
    expert_rows_on_gpu,
    float8_norm_on_gpu,
    float8_on_gpu,
    float8_swiglu_on_gpu,
    heads_on_gpu,
    norm_on_gpu,
    random_on_gpu,
    rope_on_gpu,
    swiglu_on_gpu,
    wide_on_gpu,
)
from monograph.kernels.catalog import find_kernel_ops

X, SHORT, ROW, W = torch.ones(6, 16), torch.ones(4, 16), torch.ones(16), torch.ones(16)
HALF, RSTD, HEADS = X.bfloat16(), torch.ones(6, 1), torch.ones(2, 6, 3, 16)
ANGLES, FEW_ANGLES = torch.ones(1, 6, 1, 8), torch.ones(1, 4, 1, 8)
ENDS, NUMBERS = torch.tensor([2, 2, 6]), torch.arange(6)
E4M3 = torch.float8_e4m3fn
CASES = {
    "fewer rows of up": ("of one shape", swiglu_on_gpu.swiglu, X, SHORT),
    "fewer rows of up in backward": ("of one shape", swiglu_on_gpu.swiglu_backward, X, X, SHORT),
    "fewer rows of a gate's gradient": ("of one shape", swiglu_on_gpu.swiglu_backward_packed_recompute, SHORT, X, X),
    "fewer rows of up in float8": ("of one shape", float8_swiglu_on_gpu.float8_swiglu, X, SHORT),
    "fewer rows of up in float8, backward": ("of one shape", float8_swiglu_on_gpu.float8_swiglu_backward, X, X, SHORT),
    "a gradient as wide as the pairs": ("one result", clamped_swiglu_on_gpu.clamped_swiglu_backward, X, X, 1.7, 7.0),
    "one row for all": ("of one shape", norm_on_gpu.add_norm, X, ROW, W, 1e-5),
    "an addend of another dtype": ("like x", norm_on_gpu.add_norm, HALF, X, W, 1e-5),
    "a weight of another width": ("like x", norm_on_gpu.norm, X, W[:8], 1e-5),
    "fewer rows of a norm's gradient": ("of one shape", norm_on_gpu.norm_backward, SHORT, X, W, RSTD, None),
    "fewer rows of rstd": ("has one", norm_on_gpu.norm_backward, X, X, W, RSTD[:4], None),
    "what comes past in another dtype": ("like x", norm_on_gpu.norm_backward, HALF, HALF, W, RSTD, X),
    "12 columns of float8": ("multiples of eight", float8_norm_on_gpu.float8_norm, X[:, :12], W[:12], 1e-5),
    "one row for all in float8": ("of one shape", float8_norm_on_gpu.float8_add_norm, X, ROW, W, 1e-5),
    "fewer rows of an addend": ("of one shape", wide_on_gpu.add_wide, X, SHORT),
    "fewer rows than ids": ("every id", embedding_rows_on_gpu.add_embedding_rows, X, SHORT, NUMBERS),
    "a narrower gradient": ("every id", embedding_rows_on_gpu.add_embedding_rows, X, X[:, :8], NUMBERS),
    "fewer biases than experts": ("every expert", expert_bias_on_gpu.add_expert_bias, X, X[:2], ENDS),
    "fewer rows than choices": ("every choice", expert_rows_on_gpu.combine_rows, X, torch.ones(3, 2), NUMBERS[:4]),
    "a gradient of fewer tokens": (
        *("every choice", expert_rows_on_gpu.combine_rows_backward),
        *(X[:2], X, torch.ones(3, 2), NUMBERS, NUMBERS),
    ),
    "fewer positions than rows": ("position", random_on_gpu.dropout, X, torch.tensor(7), NUMBERS[:4], 0.1),
    "fewer labels than tokens": (
        *("has a label", chunked_cross_entropy_on_gpu.chunked_cross_entropy),
        *(X, X, NUMBERS[:4], torch.tensor(1.0), 2),
    ),
    "angles of fewer places": ("angles", rope_on_gpu.rope, HEADS, FEW_ANGLES, FEW_ANGLES, False, False),
    "sines of fewer places": ("angles", rope_on_gpu.rope, HEADS, ANGLES, FEW_ANGLES, False, False),
    "keys of fewer tokens": (
        *("same tokens", rope_on_gpu.rope_packed),
        *(HEADS, HEADS[:, :4], HEADS, ANGLES, ANGLES, False, False),
    ),
    "a tail of fewer tokens": (
        *("same tokens", heads_on_gpu.join_heads),
        *(HEADS, HEADS[:, :4], ANGLES, ANGLES, False, False),
    ),
    "values of fewer tokens": ("same tokens", heads_on_gpu.split_heads, HEADS, HEADS[:, :4], ANGLES, ANGLES, False),
    "a scale for each column of one": ("one scale", float8_on_gpu.float8_cast_known, X, W, E4M3),
    "fewer maxima than columns": ("one scale", float8_on_gpu.float8_cast_transposed, X, W[:8], E4M3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_launcher_refuses_what_its_kernel_would_not_survive(case):
    message, launcher, *args = CASES[case]
    with pytest.raises(AssertionError, match=message):
        launcher(*args)


@pytest.mark.skipif(HAS_TRITON, reason="kernels on a GPU are compared with their references instead")
@pytest.mark.parametrize(
    "op", [each for each in find_kernel_ops() if str(each.op).startswith("monograph.")], ids=lambda op: op.name
)
def test_no_launcher_refuses_what_its_declaration_tries_it_with(op):
    for args in op.examples():
        try:
            op.launcher(*args)
        except (ConfigError, RuntimeError):
            pass  # Triton, or torch's own kernel, is missing
        except AssertionError as error:
            assert "CUDA" in str(error), "torch has no GPU"


@pytest.mark.gpu
def test_where_experts_rows_end_may_be_strided_and_beyond_the_rows():
    """Rows behind those that are there must not be read: here they are no numbers."""
    memory = torch.full((12, 40), float("nan"), device="cuda")
    rows, bias = memory[:5].normal_(), torch.randn(3, 40, device="cuda")
    strided = torch.tensor([2, 99, 3, 99, 5, 99], dtype=torch.int32, device="cuda")[::2]
    beyond = torch.tensor([2, 3, 12], dtype=torch.int32, device="cuda")
    wanted = torch.stack([rows[:2].sum(0), rows[2], rows[3:].sum(0)])
    for ends in (strided, beyond):
        torch.testing.assert_close(expert_bias_on_gpu.expert_bias_grad(rows, ends), wanted)
        found = expert_bias_on_gpu.add_expert_bias(rows, bias, ends)
        torch.testing.assert_close(found, rows + bias[torch.tensor([0, 0, 1, 2, 2], device="cuda")])

"""Attention over segments in Triton: against naive attention, by Triton's interpreter or on a GPU."""

import itertools
import os
import subprocess
import sys

import pytest
import torch

from monograph.compat.triton import HAS_TRITON
from monograph.kernels.attention_reference import attend_backward_densely, attend_densely
from monograph.kernels.attention_tiles import Tiles, find_tiles
from monograph.kernels.segment_attention_backward_on_gpu import run_segments_backward
from monograph.kernels.segment_attention_on_gpu import run_segments, split_channels

DOCUMENTS = [0, 20, 50, 51, 100, 100, 100]
TABLES = {
    "no table": (None, 100, 100),
    "more keys than queries": (None, 40, 100),
    "more queries than keys": (None, 100, 40),
    "documents": ([[DOCUMENTS, DOCUMENTS]] * 2, 100, 100),
    "a slice of a sequence": ([[[0, 0, 10, 40, 40], [0, 30, 50, 90, 100]]] * 2, 40, 100),
}
RULES = [(True, 0), (True, 7), (False, 0)]
TILES = Tiles(32, 16, 4, 2)


def find_errors(table, n_queries, n_keys, *, causal, window, sizes, device, dtype, cap=0.0):
    """Largest differences from naive attention in fp32: output, lse and the three gradients, each of its largest."""
    channels, value_channels = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = [
        (n_queries, 4, channels),
        (n_keys, 2, channels),
        (n_keys, 2, value_channels),
        (n_queries, 4, value_channels),
    ]
    q, k, v, grad = (torch.randn((2, *shape), generator=generator).to(device, dtype) for shape in shapes)
    segments = None if table is None else torch.tensor(table, dtype=torch.int32, device=device)
    rule = {"scale": channels**-0.5, "causal": causal, "window": window, "cap": cap}
    wide = [each.float() for each in (q, k, v)]
    out, lse = attend_densely(*wide, segments, **rule)
    wanted = [out, lse, *attend_backward_densely(grad.float(), *wide, segments, out, lse, **rule)]
    tiles = TILES if device == "cpu" else None
    found = run_segments(q, k, v, segments, **rule, tiles=tiles)
    both = None if tiles is None else (tiles, tiles)
    found += run_segments_backward(grad, q, k, v, segments, found[0], found[1], **rule, tiles=both)
    return [find_error(a.float(), b) for a, b in zip(found, wanted, strict=True)]


def find_error(found, wanted):
    """The largest difference; the lse of a query that sees no key is minus infinity in both."""
    assert torch.equal(found.isinf(), wanted.isinf())
    found, wanted = (each[wanted.isfinite()] for each in (found, wanted))
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def check_cases(device, dtype, limit, all_sizes):
    for name, (table, n_queries, n_keys) in TABLES.items():
        for causal, window in RULES:
            for sizes, cap in itertools.product(all_sizes, (0.0, 0.8)):
                rule = {"causal": causal, "window": window, "cap": cap}
                errors = find_errors(table, n_queries, n_keys, **rule, sizes=sizes, device=device, dtype=dtype)
                assert max(errors) < limit, (name, causal, window, cap, sizes, errors)


def check_far_heads(device, dtype):
    """Heads that lie 2**30 numbers apart give what heads beside each other give. They begin in the middle of memory of
    which the rest is not touched: with offsets of 32 bits the last head's would be before its beginning."""
    generator = torch.Generator().manual_seed(0)
    near = [torch.randn(1, 20, 3, 16, generator=generator).to(device, dtype) for _ in range(4)]
    memory = torch.empty(2**32 + 2**20, dtype=dtype, device=device)
    far = [memory.as_strided(x.shape, (0, 64, 2**30, 1), 2**31 + 16 * index) for index, x in enumerate(near)]
    rule, results = {"scale": 0.25, "causal": True, "window": 0}, []
    tiles = TILES if device == "cpu" else None
    for x, y in zip(near, far, strict=True):
        y.copy_(x)
    for q, k, v, grad in (near, far):
        out, lse = run_segments(q, k, v, None, **rule, tiles=tiles)
        both = None if tiles is None else (tiles, tiles)
        results.append([out, lse, *run_segments_backward(grad, q, k, v, None, out, lse, **rule, tiles=both)])
    assert all(map(torch.equal, *results))


@pytest.mark.gpu
def test_heads_may_lie_further_apart_than_an_offset_of_32_bits_reaches():
    if torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("less than 10 GiB are free")
    check_far_heads("cuda", torch.bfloat16)


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed, as on machines without a GPU")
@pytest.mark.parametrize(
    "check", ["check_cases('cpu', torch.float32, 1e-5, [(8, 8), (24, 16)])", "check_far_heads('cpu', torch.float16)"]
)
def test_the_interpreted_kernels_equal_naive_attention_wherever_heads_lie(check):
    """In a process of its own: Triton decides when it is imported whether it interprets kernels."""
    lines = f"import torch; from tests.kernels.test_segment_attention import check_cases, check_far_heads; {check}"
    done = subprocess.run([sys.executable, "-c", lines], env=os.environ | {"TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0


@pytest.mark.gpu
def test_the_kernels_equal_naive_attention_on_a_gpu():
    check_cases("cuda", torch.bfloat16, 2e-2, [(64, 64)])
    table, n_queries, n_keys = TABLES["documents"]
    for sizes, cap in itertools.product(((128, 128), (192, 128), (72, 40), (256, 256)), (0.0, 0.8)):
        rule = {"causal": True, "window": 0, "cap": cap}
        errors = find_errors(table, n_queries, n_keys, **rule, sizes=sizes, device="cuda", dtype=torch.bfloat16)
        assert max(errors) < 2e-2, (sizes, cap, errors)


@pytest.mark.gpu
def test_two_calls_have_the_same_bits():
    first = [torch.randn(2, 512, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (8, 2, 2, 8)]
    rule = {"scale": 0.125, "causal": True, "window": 0}
    starts = [0, 100, 301, 512]
    table = torch.tensor([[starts, starts]] * 2, dtype=torch.int32, device="cuda")
    q, k, v, grad = first
    results = []
    for _ in range(2):
        out, lse = run_segments(q, k, v, table, **rule)
        results.append([out, lse, *run_segments_backward(grad, q, k, v, table, out, lse, **rule)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(
    ("channels", "values", "widths"),
    [
        (64, 64, (64, 0, 64)),
        (192, 128, (128, 64, 128)),
        (8, 8, (16, 0, 16)),
        (80, 80, (64, 16, 128)),
        (72, 40, (64, 16, 64)),
    ],
)
def test_channels_are_split_into_powers_of_two(channels, values, widths):
    assert split_channels(channels, values) == widths


@pytest.mark.parametrize(
    ("channels", "shared_kib", "rows"),
    [
        (64, 99, (64, 64, 64)),
        (128, 99, (64, 64, 64)),
        (192, 227, (128, 128, 128)),
        (192, 163, (128, 128, 128)),
        (192, 99, (64, 64, 64)),
        (256, 227, (128, 64, 64)),
        (256, 163, (128, 64, 64)),
        (256, 99, (64, 32, 32)),
    ],
)
def test_tiles_fit_the_shared_memory_of_a_gpu(channels, shared_kib, rows):
    """Of an H200, an A100 and a GPU of compute capability 8.6 or 8.9."""
    assert tuple(each.rows for each in find_tiles(channels, shared_kib << 10)) == rows

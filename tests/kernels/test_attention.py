"""Attention as one op: every kind against the definition, values and gradients, by every kernel that can run here."""

import itertools

import pytest
import torch

from monograph.compat.attention import Ends, flash_attention, flash_attention_backward
from monograph.errors import ConfigError
from monograph.kernels.attention import ATTENTION, KERNELS, attention
from monograph.kernels.attention_on_gpu import (
    CUDNN,
    DENSE,
    FLASH,
    TRITON,
    choose_for_backward,
    choose_kernel,
    find_window,
    run_flash,
)
from monograph.kernels.attention_reference import attend_backward_densely, attend_densely
from monograph.kernels.attention_segments import build_mask, flatten_segments
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE, SequencePart

BATCH, LENGTH, HEADS, CHANNELS = 2, 16, 4, 8
WINDOW, CHUNKED = AttentionKind("window", window=3), AttentionKind("chunked", chunk=4)
FULL = AttentionKind("full", causal=False)
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7 + [2] * 4, [0] * 16])
KINDS = [(kind, documents) for kind in (CAUSAL, WINDOW, CHUNKED, FULL) for documents in (None, DOCUMENTS)]
SCALE = 0.3


def draw(*shape, seed=0, dtype=torch.float64, device="cpu"):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(device, dtype).requires_grad_()


def draw_inputs(kv_heads=2, values=CHANNELS, queries=LENGTH, **options):
    q = draw(BATCH, queries, HEADS, CHANNELS, **options)
    k, v = (
        draw(BATCH, LENGTH, kv_heads, CHANNELS, seed=1, **options),
        draw(BATCH, LENGTH, kv_heads, values, seed=2, **options),
    )
    return q, k, v, draw(HEADS, seed=3, **options)


def attend_by_definition(q, k, v, mask, sinks, cap=0.0):
    """Softmax over scores with key and value heads repeated, and one more score for a sink that has no value."""
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    scores = torch.einsum("bqhc,bkhc->bhqk", q, k) * SCALE
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    return torch.einsum("bhqk,bkhc->bqhc", scores.softmax(-1)[..., : k.shape[1]], v)


def make_table(kind, documents, part=WHOLE):
    found = build_segments(documents, kind, part, batch=BATCH, length=LENGTH)
    return None if found is None else found[:, 0]


def compare(found, wanted, inputs, atol):
    torch.testing.assert_close(found, wanted, rtol=0, atol=atol)
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64).to(wanted)
    for one, other in zip(*(torch.autograd.grad(each, inputs, grad) for each in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=10 * atol)


@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("kv_heads, values", [(4, 8), (2, 8), (1, 4), (2, 12)])
@pytest.mark.parametrize(
    "kind, documents", KINDS, ids=lambda each: getattr(each, "name", "documents" if each is not None else "")
)
def test_every_kind_is_the_textbook_attention_with_its_gradients(kind, documents, kv_heads, values, has_sinks):
    q, k, v, sinks = draw_inputs(kv_heads, values)
    table = make_table(kind, documents)
    mask = build_mask(table, LENGTH, LENGTH, causal=kind.causal, window=kind.window)
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    inputs = [q, k, v, sinks] if has_sinks else [q, k, v]
    found = attention(q, k, v, table, sinks if has_sinks else None, **rule)
    compare(found, attend_by_definition(q, k, v, mask, sinks if has_sinks else None), inputs, 1e-12)


@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("kind, documents", KINDS, ids=str)
def test_capped_scores_are_those_of_the_definition_with_their_gradients(kind, documents, has_sinks):
    q, k, v, sinks = draw_inputs(values=12)
    table = make_table(kind, documents)
    mask = build_mask(table, LENGTH, LENGTH, causal=kind.causal, window=kind.window)
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    inputs = [q, k, v, sinks] if has_sinks else [q, k, v]
    found = attention(q, k, v, table, sinks if has_sinks else None, **rule, cap=0.4)
    assert not torch.allclose(found, attention(q, k, v, table, sinks if has_sinks else None, **rule), atol=1e-2)
    compare(found, attend_by_definition(q, k, v, mask, sinks if has_sinks else None, 0.4), inputs, 1e-12)


@pytest.mark.parametrize("kind, documents", KINDS[:4], ids=str)
def test_slices_of_a_sequence_are_rows_of_the_whole(kind, documents):
    """Context parallelism: a rank's queries over all keys; gradients of keys add up over ranks."""
    q, k, v, sinks = draw_inputs()
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    whole = attention(q, k, v, make_table(kind, documents), sinks, **rule)
    rows = []
    for part in (SequencePart(0, 2), SequencePart(1, 2)):
        table = build_segments(documents, kind, part, batch=BATCH, length=LENGTH)
        slices = part.bounds(LENGTH)
        for each, (start, stop) in zip(table.unbind(1), slices, strict=True):
            given = slice(0, int(each[0, 1, -1]))  # the first slice of a rank gets half of the keys
            rows.append((start, attention(q[:, start:stop], k[:, given], v[:, given], each, sinks, **rule)))
    joined = torch.cat([row for _, row in sorted(rows, key=lambda each: each[0])], 1)
    compare(joined, whole, [q, k, v, sinks], 1e-12)


@pytest.mark.parametrize("kind, documents", KINDS, ids=str)
def test_scores_computed_as_a_whole_give_the_same_and_read_no_table_on_the_host(kind, documents):
    q, k, v, _ = (each.detach() for each in draw_inputs(values=4))
    table = make_table(kind, documents)
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    out, lse, *_ = ATTENTION(q, k, v, table, None, *rule.values(), 0, 0.0)
    dense, dense_lse = attend_densely(q, k, v, table, **rule)
    torch.testing.assert_close((dense, dense_lse), (out, lse), rtol=0, atol=1e-12)
    grad = torch.randn_like(out)
    wanted = torch.ops.monograph.attention_backward(grad, q, k, v, table, None, out, lse, *rule.values(), 0, 0.0)[:3]
    torch.testing.assert_close(
        attend_backward_densely(grad, q, k, v, table, out, lse, **rule), tuple(wanted), rtol=0, atol=1e-11
    )


@pytest.mark.parametrize("has_sinks", [False, True], ids=["", "sinks"])
@pytest.mark.parametrize("causal, window", [(True, 0), (True, 3), (False, 0)])
@pytest.mark.parametrize("ends", [None, [[0, 4, 9], [0, 5, 5]], [[0, 4, 9, 9], [0, 1, 5, 5]]], ids=str)
def test_a_query_that_sees_no_key_gives_nothing_and_gets_nothing(ends, causal, window, has_sinks):
    """Where queries are more than keys, or a segment has none; on a CPU and with scores computed as a whole."""
    q, k, v, sinks = draw_inputs(queries=9)
    k, v = (each.detach()[:, :5].requires_grad_() for each in (k, v))
    sinks, rule = sinks if has_sinks else None, {"scale": SCALE, "causal": causal, "window": window}
    table = None if ends is None else torch.tensor([ends] * BATCH, dtype=torch.int32)
    mask = build_mask(table, 9, 5, causal=causal, window=window)
    wanted = attend_by_definition(q, k, v, mask, sinks).nan_to_num()
    torch.testing.assert_close(attention(q, k, v, table, sinks, **rule), wanted, rtol=0, atol=1e-12)
    plain = [each.detach() for each in (q, k, v)]
    out, lse = ATTENTION(*plain, table, None, *rule.values(), 0, 0.0)
    dense = attend_densely(*plain, table, **rule)
    torch.testing.assert_close(dense, (out, lse), rtol=0, atol=1e-12)
    is_blind = torch.zeros(BATCH, 9, dtype=torch.bool) if mask is None else ~mask.any(-1)[:, 0].expand(BATCH, 9)
    assert torch.equal(lse.isneginf(), is_blind.unsqueeze(1).expand_as(lse)) and not out[is_blind].any()
    grads = torch.ops.monograph.attention_backward(
        torch.ones_like(out), *plain, table, None, out, lse, *rule.values(), 0, 0.0
    )[:3]
    torch.testing.assert_close(
        attend_backward_densely(torch.ones_like(out), *plain, table, out, lse, **rule), grads, rtol=0, atol=1e-11
    )
    assert not grads[0][is_blind].any()


@pytest.mark.parametrize("ends", [[[0, 4, 8], [0, 4, 16]], [[0, 4, 16], [0, 4, 15]]], ids=str)
def test_a_table_that_leaves_queries_or_keys_out_is_refused_where_it_can_be_read(ends):
    q, k, v, _ = draw_inputs()
    with pytest.raises(ConfigError, match="segments end at query"):
        attention(q, k, v, torch.tensor([ends] * BATCH, dtype=torch.int32), scale=SCALE)


def test_a_document_has_the_bits_it_has_alone():
    q, k, v, _ = (each.detach() for each in draw_inputs(dtype=torch.float32))
    packed = attention(q, k, v, make_table(CAUSAL, DOCUMENTS), scale=SCALE)
    for row, start, stop in ((0, 0, 5), (0, 5, 12), (0, 12, 16), (1, 0, 16)):
        part = (slice(row, row + 1), slice(start, stop))
        assert torch.equal(packed[part], attention(q[part], k[part], v[part], scale=SCALE))


def test_bf16_is_as_near_to_the_definition_as_bf16_is():
    q, k, v, sinks = (each.detach() for each in draw_inputs(dtype=torch.bfloat16))
    table = make_table(WINDOW, DOCUMENTS)
    found = attention(q, k, v, table, sinks, scale=SCALE, window=3)
    mask = build_mask(table, LENGTH, LENGTH, causal=True, window=3)
    wanted = attend_by_definition(q.double(), k.double(), v.double(), mask, sinks.double())
    assert found.dtype == torch.bfloat16
    assert ((found.double() - wanted).norm() / wanted.norm()) < 5e-3


def test_keys_that_no_query_sees_have_no_gradient():
    q, k, v, _ = draw_inputs(queries=LENGTH // 4)
    table = build_segments(DOCUMENTS, CAUSAL, SequencePart(1, 2), batch=BATCH, length=LENGTH)[:, 1]
    of_k, of_v = torch.autograd.grad(attention(q, k, v, table, scale=SCALE).sum(), (k, v))
    seen = build_mask(table, LENGTH // 4, LENGTH, causal=True, window=0)[:, 0].any(1)
    assert 0 < seen.sum() < seen.numel()
    assert not of_k[~seen].any() and not of_v[~seen].any() and of_v[seen].abs().min() > 0


def test_only_where_asked_for_is_the_backward_cudnns_which_adds_in_any_order():
    forward = {name: choose(kernel=KERNELS.index(name)) for name in ("auto", "fastest", "cudnn", "reference")}
    found = {name: choose_for_backward(each, KERNELS.index(name)) for name, each in forward.items()}
    assert found == {"auto": TRITON, "fastest": CUDNN, "cudnn": CUDNN, "reference": DENSE}


def choose(dtype=torch.bfloat16, channels=64, segments=None, window=0, kernel=0, can_use=True, keys=16, cap=0.0):
    q = torch.empty(1, 16, 4, channels, dtype=dtype, device="meta")
    k = torch.empty(1, keys, 4, channels, dtype=dtype, device="meta")
    rule = {"causal": True, "window": window, "kernel": kernel, "cap": cap}
    return choose_kernel(q, k, k, segments, **rule, can_use=lambda *_args, **_options: can_use)


def test_the_fastest_kernel_that_serves_is_chosen():
    table = torch.zeros(1, 2, 4, dtype=torch.int32)
    assert choose() == CUDNN
    assert (
        choose(can_use=False)
        == choose(segments=table)
        == choose(window=4)
        == choose(keys=32)
        == choose(cap=50.0)
        == TRITON
    )
    assert choose(channels=512, can_use=False) == choose(dtype=torch.float32) == choose(kernel=3) == DENSE
    assert choose(kernel=2) == FLASH and choose(kernel=4) == TRITON and choose(kernel=5) == CUDNN
    for wrong in (
        {"kernel": 4, "channels": 512},
        {"kernel": 1, "segments": table},
        {"kernel": 2, "dtype": torch.float32},
        {"kernel": 2, "cap": 50.0},
        {"kernel": 1, "cap": 50.0},
    ):
        with pytest.raises(ConfigError, match="does not serve"):
            choose(**wrong)


def test_a_dense_mask_is_made_where_the_scores_are():
    """On the meta device, which takes nothing from the host: neither does a CUDA graph while it is recorded."""
    q, k, v = (torch.empty(2, 9, 4, 8, device="meta") for _ in range(3))
    out, _ = attend_densely(q, k, v, None, scale=SCALE, causal=True, window=3)
    mask = build_mask(None, 9, 9, causal=True, window=3, device=q.device)
    assert out.device.type == mask.device.type == "meta"


def test_a_kernel_of_gpus_is_refused_on_a_cpu():
    q, k, v, _ = draw_inputs()
    for kernel in ("cudnn", "flash", "triton"):
        with pytest.raises(ConfigError, match=f"{kernel}, on a CPU"):
            attention(q, k, v, scale=SCALE, kernel=kernel)


@pytest.mark.parametrize("kind, documents", KINDS, ids=str)
def test_torchs_kernels_take_what_they_are_given(kind, documents):
    """On the meta device: arguments fit the schema, and shapes come out right."""
    q, k, v, _ = (each.detach().to("meta", torch.bfloat16) for each in draw_inputs(values=4))
    table = make_table(kind, documents)
    on_meta = None if table is None else table.to("meta")
    window = find_window(kind.causal, kind.window)
    out, lse = run_flash(q, k, v, on_meta, scale=SCALE, window=window)
    assert out.shape == (BATCH, LENGTH, HEADS, 4) and lse.shape == (BATCH, HEADS, LENGTH)
    wide = torch.empty(*k.shape, dtype=torch.bfloat16, device="meta")
    if on_meta is not None:
        ends = Ends(*flatten_segments(on_meta, LENGTH, LENGTH), LENGTH, LENGTH)
        tokens = [each.flatten(0, 1) for each in (q, k, wide)]
        out, lse = flash_attention(*tokens, ends, scale=SCALE, window=window)
        grads = flash_attention_backward(out, *tokens, out, lse, ends, scale=SCALE, window=window)
        assert [each.shape for each in grads] == [each.shape for each in tokens]


GPU_KERNELS = list(itertools.product(("auto", "fastest", "flash", "reference"), KINDS))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel, case", GPU_KERNELS, ids=str)
def test_a_gpu_gives_what_a_cpu_gives(kernel, case):
    kind, documents = case
    on_cpu = draw_inputs()
    table = make_table(kind, documents)
    mask = build_mask(table, LENGTH, LENGTH, causal=kind.causal, window=kind.window)
    q, k, v, sinks = (each.detach().to("cuda", torch.bfloat16).requires_grad_() for each in on_cpu)
    poison = torch.full((64, 1 << 20), float("nan"), device="cuda")
    del poison  # what is not written must show
    on_gpu = None if table is None else table.cuda()
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    found = attention(q, k, v, on_gpu, sinks, kernel=kernel, **rule)
    exact = [each.detach().double().cpu().requires_grad_() for each in (q, k, v, sinks)]
    wanted = attend_by_definition(*exact[:3], mask, exact[3])
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    pairs = [(found, wanted)]
    pairs += zip(
        torch.autograd.grad(found, (q, k, v, sinks), grad.to(found)),
        torch.autograd.grad(wanted, exact, grad),
        strict=True,
    )
    for one, other in pairs:
        assert ((one.double().cpu() - other).norm() / other.norm()) < 1e-2


@pytest.mark.gpu
def test_gradients_on_a_gpu_do_not_vary_from_run_to_run():
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(2, 2048, 8, 64, device="cuda", generator=generator).bfloat16() for _ in range(3))
    leaves = [each.requires_grad_() for each in (q, k, v)]
    runs = [torch.autograd.grad(attention(*leaves, scale=0.125).sum(), leaves) for _ in range(5)]
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind, documents", KINDS, ids=str)
def test_fp32_on_a_gpu_is_the_definition(kind, documents):
    q, k, v, sinks = (each.detach().to("cuda", torch.float32).requires_grad_() for each in draw_inputs())
    table = make_table(kind, documents)
    mask = build_mask(table, LENGTH, LENGTH, causal=kind.causal, window=kind.window)
    rule = {"scale": SCALE, "causal": kind.causal, "window": kind.window}
    found = attention(q, k, v, None if table is None else table.cuda(), sinks, **rule)
    wanted = attend_by_definition(q, k, v, None if mask is None else mask.cuda(), sinks)
    compare(found, wanted, [q, k, v, sinks], 1e-5)

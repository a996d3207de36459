"""FlexAttention: equal to naive attention in fp32, its tables to torch's, and compiled once."""

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from monograph.compat.flex import BlockTables
from monograph.kernels import flex_attention, flex_on_gpu
from monograph.kernels.flex_attention import build_block_tables
from monograph.kernels.flex_on_gpu import CompiledFlex, FlexRecompiled
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.flex_attention import FlexCore, build_flex_inputs
from monograph.models.flex_mods import FlexSpec, bind_mask
from monograph.models.score_mods import SOFT_CAP, add_alibi, cap_softly

BATCH, LENGTH, HEADS, SCALE = 2, 300, 4, 0.3
DOCUMENTS = torch.stack([torch.arange(LENGTH) // 130, torch.arange(LENGTH) // 7])
POSITIONS = torch.stack([torch.arange(LENGTH) % 130, torch.arange(LENGTH) % 7])
CASES = {
    "causal": FlexSpec(CAUSAL, HEADS),
    "window": FlexSpec(AttentionKind("window", window=50), HEADS),
    "full documents": FlexSpec(AttentionKind("full", causal=False), HEADS, has_documents=True),
    "documents": FlexSpec(CAUSAL, HEADS, has_documents=True),
    "chunks of documents": FlexSpec(AttentionKind("chunked", chunk=40), HEADS, has_documents=True),
    "alibi": FlexSpec(CAUSAL, HEADS, None, add_alibi, True),
    "soft cap": FlexSpec(CAUSAL, HEADS, None, cap_softly),
}


def build_inputs(spec):
    given = {"documents": DOCUMENTS.int() if spec.has_documents else None, "positions": POSITIONS}
    return build_flex_inputs(spec, torch.zeros((BATCH, LENGTH), dtype=torch.int64), given)


def attend_naively(spec, q, k, v):
    """All scores in fp32, of functions written once more."""
    k, v = (each.repeat_interleave(HEADS // each.shape[2], 2) for each in (k, v))
    distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None]
    scores = torch.einsum("bqhc,bkhc->bhqk", q, k) * SCALE
    if spec.score_mod is add_alibi:
        scores = scores - distance * torch.tensor([2 ** (-8 * (h + 1) / HEADS) for h in range(HEADS)])[:, None, None]
    elif spec.score_mod is cap_softly:
        scores = SOFT_CAP * torch.tanh(scores / SOFT_CAP)
    seen = (distance >= 0 if spec.kind.causal else distance == distance).expand(BATCH, 1, LENGTH, LENGTH)
    if spec.kind.window:
        seen = seen & (distance < spec.kind.window)
    for same in ([DOCUMENTS] if spec.has_documents else []) + (
        [POSITIONS // spec.kind.chunk] if spec.kind.chunk else []
    ):
        seen = seen & (same[:, None, :, None] == same[:, None, None, :])
    return torch.einsum("bhqk,bkhv->bqhv", scores.masked_fill(~seen, float("-inf")).softmax(-1), v)


@pytest.mark.parametrize("case", CASES)
def test_it_equals_naive_attention_with_gradients(case):
    spec = CASES[case]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((BATCH, LENGTH, n, 16), generator=generator).requires_grad_() for n in (HEADS, 2, 2))
    found = FlexCore(spec, scale=SCALE)(q, k, v, build_inputs(spec))
    expected = attend_naively(spec, q, k, v)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    grad = torch.randn(found.shape, generator=generator)
    for one, other in zip(*(torch.autograd.grad(each, (q, k, v), grad) for each in (found, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("most", [1 << 27, 1 << 15], ids=["at once", "some queries at a time"])
@pytest.mark.parametrize("case", CASES)
def test_its_tables_are_those_of_torch(case, most, monkeypatch):
    monkeypatch.setattr(flex_attention, "MAX_MASK_ELEMENTS", most)
    spec = CASES[case]
    inputs = build_inputs(spec)
    tensors = [getattr(inputs, name) for name in spec.mask_names]
    mask = bind_mask(spec)
    sizes = (BATCH if tensors else 1, 1, LENGTH, LENGTH)
    expected = create_block_mask(lambda b, h, q, k: mask(b, h, q, k, *tensors), *sizes, device="cpu")
    for name in BlockTables._fields:
        assert torch.equal(getattr(inputs.tables, name), getattr(expected, name)), name


def by_head(batch, head, query, key):
    return (query >= key) & (query - key < 16 * (head + 1))


def test_a_mask_that_reads_the_head_has_tables_for_every_head():
    inputs = build_inputs(FlexSpec(CAUSAL, HEADS, by_head))
    expected = create_block_mask(by_head, 1, HEADS, LENGTH, LENGTH, device="cpu")
    assert inputs.tables.kv_indices.shape[:2] == (1, HEADS)
    assert torch.equal(inputs.tables.kv_num_blocks, expected.kv_num_blocks)
    assert torch.equal(inputs.tables.kv_indices, expected.kv_indices)


def test_tables_are_made_on_the_device_of_the_tokens():
    tables = build_block_tables(
        lambda b, h, q, k: q >= k, (), batch=1, heads=1, length=256, device=torch.device("meta")
    )
    assert {each.device.type for each in tables} == {"meta"} and {each.dtype for each in tables} == {torch.int32}


def test_another_sequence_length_is_an_error_and_another_batch_size_is_not(monkeypatch):
    monkeypatch.setattr(flex_on_gpu, "compile_graph", lambda module, *_, **__: module)
    spec = CASES["causal"]
    op = FlexCore(spec, scale=SCALE).ops[False]
    code = CompiledFlex("causal", op.compiled.function)

    def run(batch, length):
        q, k, v = (torch.zeros((batch, n, length, 16)) for n in (HEADS, 2, 2))
        tokens = torch.zeros((batch, length), dtype=torch.int64)
        tables = build_flex_inputs(spec, tokens, {}).tables
        return code(q, k, v, tables, graphs=op.trace(q, (), ()), tensors=((), ()), scale=SCALE)

    for batch in (2, 2, 1):
        assert run(batch, 256)[0].shape == (batch, HEADS, 256, 16)
    assert len(code.codes) == 2
    with pytest.raises(FlexRecompiled, match=r"causal was compiled for \[2, 4, 256, 16\] and gets \[2, 4, 128, 16\]"):
        run(2, 128)

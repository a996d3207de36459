"""Attention: what a token sees, and norms in fp32."""

import pytest
import torch
import torch.nn.functional as F

from monograph.models.norm import RMSNorm
from tests.kit.small import SMALL, VOCAB, build


@pytest.mark.parametrize("family", SMALL)
def test_packed_documents_give_the_logits_they_have_alone(family):
    model = build(SMALL[family](mask="document")).eval()
    lengths = [5, 14, 1, 12, *[2] * 20]
    generator = torch.Generator().manual_seed(0)
    pieces = [torch.randint(0, VOCAB, (length,), generator=generator) for length in lengths]
    positions = torch.cat([torch.arange(length) for length in lengths])
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    with torch.no_grad():
        packed = model.predict(torch.cat(pieces)[None], positions=positions[None], documents=documents[None])[0]
        for piece, found in zip(pieces, packed.split(lengths), strict=True):
            alone = model.predict(piece[None], documents=torch.zeros_like(piece)[None])[0]
            torch.testing.assert_close(found, alone, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", SMALL)
def test_a_token_does_not_see_later_ones(family):
    model = build(SMALL[family]()).eval()
    tokens = torch.randint(0, VOCAB, (1, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % VOCAB
    with torch.no_grad():
        before, after = model.predict(tokens)[0], model.predict(changed)[0]
    torch.testing.assert_close(before[:12], after[:12], rtol=0, atol=1e-5)
    assert (before[12:] - after[12:]).abs().min(dim=-1).values.max() > 0


@pytest.mark.parametrize("family", SMALL)
def test_without_documents_a_row_is_one_document(family):
    model = build(SMALL[family](mask="document")).eval()
    tokens = torch.randint(0, VOCAB, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.predict(tokens), build(SMALL[family]()).eval().predict(tokens))


@pytest.mark.parametrize("weight_dtype", [torch.float32, torch.bfloat16])
def test_the_norm_of_bf16_is_taken_in_fp32_and_stays_bf16(weight_dtype):
    x = (100 * torch.randn(4, 512, generator=torch.Generator().manual_seed(0))).bfloat16()
    norm = RMSNorm(512, 1e-6).to(weight_dtype)
    wide = x.double()
    expected = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    found = norm(x)
    assert found.dtype == torch.bfloat16
    assert ((found.double() - expected).abs() <= expected.abs() * 2**-8).all()


def test_the_norm_in_fp32_is_the_textbook_one():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    norm = RMSNorm(64, 1e-5)
    norm.weight.data = torch.randn(64, generator=torch.Generator().manual_seed(1))
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), expected, rtol=1e-6, atol=1e-6)
    assert F.mse_loss(norm(x), x) > 0.1

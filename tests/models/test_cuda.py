"""On a GPU: the same starting values, the same answers, cuDNN's attention, and a step that never waits for the host."""

import pytest
import torch

from monograph.kernels.attention import attention
from monograph.kernels.attention_on_gpu import CUDNN, TRITON, choose_kernel
from monograph.models.attention_kind import CAUSAL
from monograph.models.deepseek_v3.sizes import deepseek_v3_debugmodel
from monograph.models.llama3.sizes import llama3_debugmodel
from monograph.models.qwen3.sizes import qwen3_debugmodel_moe
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE
from tests.kit.small import SMALL, batch, build, small_deepseek_v3
from tests.models.test_experts import SIZES, make

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEBUG_MODELS = (llama3_debugmodel, qwen3_debugmodel_moe, deepseek_v3_debugmodel)


def run_experts(backend: str, sizes: list[int]) -> dict[str, torch.Tensor]:
    experts = make(backend, torch.bfloat16).cuda()
    rows = torch.randn(sum(sizes), 32, generator=torch.Generator().manual_seed(1)).bfloat16().cuda().requires_grad_()
    out = experts(rows, torch.tensor(sizes).cumsum(0).to(torch.int32).cuda())
    out.float().square().sum().backward()
    return {"out": out, "rows": rows.grad, **{name: p.grad for name, p in experts.named_parameters()}}


@pytest.mark.parametrize("family", SMALL)
def test_starting_values_are_those_of_the_cpu(family):
    here, there = build(SMALL[family](), device="cuda"), build(SMALL[family]())
    pairs = zip([*here.parameters(), *here.buffers()], [*there.parameters(), *there.buffers()], strict=True)
    assert all(torch.equal(a.cpu(), b) for a, b in pairs)


@pytest.mark.parametrize("family", SMALL)
def test_fp32_answers_are_those_of_the_cpu(family):
    here, there = build(SMALL[family](), device="cuda"), build(SMALL[family]())
    tokens, labels = batch()
    found, expected = here(tokens.cuda(), labels.cuda()), there(tokens, labels)
    assert abs(found.loss.item() - expected.loss.item()) < 1e-5
    found.loss.backward()
    expected.loss.backward()
    for (name, a), b in zip(here.named_parameters(), there.parameters(), strict=True):
        assert (a.grad.cpu() - b.grad).abs().max() <= 1e-4 * b.grad.abs().max(), name


@pytest.mark.parametrize("sizes", [SIZES, [0, 0, 0, 32], [32, 0, 0, 0], [1, 30, 1, 0], [0, 16, 0, 16]])
def test_grouped_and_loop_agree_also_for_experts_without_tokens(sizes):
    torch.cuda.empty_cache()
    grouped, loop = run_experts("grouped_mm", sizes), run_experts("loop", sizes)
    for name in loop:
        assert torch.isfinite(grouped[name]).all(), name
        assert (grouped[name].float() - loop[name].float()).abs().max() <= 0.01 * loop[name].float().abs().max(), name
    for name in ("w1", "w2", "w3"):
        assert all((grouped[name][expert] == 0).all() for expert, size in enumerate(sizes) if size == 0)


def test_a_step_with_local_experts_never_waits_for_the_host():
    model = build(deepseek_v3_debugmodel(), dtype=torch.bfloat16, device="cuda")
    tokens = torch.randint(0, 256, (2, 256), device="cuda")
    valid_tokens = torch.tensor(512, device="cuda")
    for mode in ("default", "error"):
        torch.cuda.set_sync_debug_mode(mode)
        try:
            out = model(tokens, tokens, valid_tokens)
            out.objective.backward()
            out.metrics["expert_load"].add_(1)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("make_config", DEBUG_MODELS)
@pytest.mark.parametrize("mask", ["causal", "document"])
def test_a_deterministic_step_gives_the_same_bits_every_time(make_config, mask, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    config = make_config()
    config.mask = mask
    model = build(config, dtype=torch.bfloat16, device="cuda")
    tokens = torch.randint(0, 256, (2, 256), generator=torch.Generator().manual_seed(0)).cuda()
    documents = torch.arange(256, device="cuda").expand(2, 256) // 100
    results = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            model.zero_grad()
            out = model(tokens, tokens.roll(-1, 1), documents=documents)
            out.loss.backward()
            results.append([out.loss, *(p.grad for p in model.parameters())])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("qk_dim, v_dim, kv_heads", [(128, 128, 8), (128, 128, 2), (64, 64, 8), (192, 128, 8)])
@pytest.mark.parametrize("packed", [False, True])
def test_cudnn_is_used_where_a_sequence_is_one_text_and_triton_for_documents(qk_dim, v_dim, kv_heads, packed):
    q = torch.randn(2, 256, 8, qk_dim, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(2, 256, kv_heads, qk_dim, device="cuda", dtype=torch.bfloat16)
    v = torch.randn(2, 256, kv_heads, v_dim, device="cuda", dtype=torch.bfloat16)
    documents = torch.arange(256).expand(2, 256) // 100 if packed else None
    table = build_segments(documents, CAUSAL, WHOLE, batch=2, length=256)
    table = None if table is None else table[:, 0].cuda()
    assert choose_kernel(q, k, v, table, causal=True, window=0, kernel=0) == (TRITON if packed else CUDNN)
    wanted = attention(*(x.float() for x in (q, k, v)), table, scale=0.1)
    for kernel in ("auto", "flash", "triton"):
        assert (attention(q, k, v, table, scale=0.1, kernel=kernel).float() - wanted).abs().max() < 0.03


def test_bf16_works_for_every_family_with_documents():
    for family in SMALL.values():
        model = build(family(mask="document"), dtype=torch.bfloat16, device="cuda")
        tokens, labels = (x.cuda() for x in batch())
        tables = model.build_segments((2, 32), torch.arange(32).expand(2, 32) // 10)
        model(tokens, labels, **{name: table.cuda() for name, table in tables.items()}).loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_asking_for_the_loop_on_a_gpu_is_served():
    config = small_deepseek_v3()
    config.moe.experts.backend = "loop"
    model = build(config, dtype=torch.bfloat16, device="cuda")
    tokens, labels = (x.cuda() for x in batch())
    model(tokens, labels).loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())

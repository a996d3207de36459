"""Every supported plan computes what one device computes: each kind of mesh, each model, both ways of sharding."""

import pytest

from monograph.errors import ConfigError
from monograph.train.layout import plan_run_mesh
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import verify_on_ranks

DP2, DP4, HSDP = (2, {}), (4, {}), (4, {"replicate": 2})
TP2, DP2_TP2 = (2, {"tp": 2}), (4, {"tp": 2})
EP2, DP4_EP2, HSDP_EP2 = (2, {"ep": 2}), (4, {"ep": 2}), (4, {"replicate": 2, "ep": 2})
ETP1, ETP2 = (8, {"tp": 2, "ep": 4}), (8, {"tp": 2, "ep": 4, "etp": 2})
CP2, CP4, CP2_TP2 = (2, {"cp": 2}), (4, {"cp": 4}), (4, {"cp": 2, "tp": 2})
CP2_DP2_EP2, CP2_DP2_TP2_EP2 = (4, {"cp": 2, "ep": 2}), (8, {"cp": 2, "tp": 2, "ep": 2})
LATENT = {"parallelism.context_parallel_gather": "latent"}
ULYSSES = {"parallelism.context_parallel_method": "ulysses"}
DOCUMENTS = {"model.mask": "document", "training.local_batch_size": 2}
GROUPED = {"model.moe.experts.backend": "grouped_mm"}
LOOP = {"model.moe.experts.backend": "loop"}
DROPOUT = {"model.dropout": 0.2}

CASES = {
    "llama3-dp2-graph": ("llama3", DP2, "graph", {}),
    "llama3-dp4-fsdp2": ("llama3", DP4, "fsdp2", {}),
    "llama3-hsdp-fsdp2": ("llama3", HSDP, "fsdp2", {}),
    "llama3-tp2-graph": ("llama3", TP2, "graph", {"model.mask": "document", **DROPOUT}),
    "qwen3-dp2-fsdp2": ("qwen3", DP2, "fsdp2", {}),
    "qwen3-tp2-fsdp2": ("qwen3", TP2, "fsdp2", {"training.freeze": ("layers.0.*",)}),
    "qwen3-dp2-tp2-graph": (
        "qwen3",
        DP2_TP2,
        "graph",
        {"training.freeze": ("layers.*norm*", "layers.1.feed_forward.*")},
    ),
    "qwen3_moe-tp2-fsdp2": ("qwen3_moe", TP2, "fsdp2", LOOP | DROPOUT),
    "qwen3_moe-ep2-graph": ("qwen3_moe", EP2, "graph", GROUPED),
    "qwen3_moe-dp4-ep2-graph": ("qwen3_moe", DP4_EP2, "graph", LOOP),
    "qwen3_moe-dp4-tp2-ep4-etp2-fsdp2": ("qwen3_moe", ETP2, "fsdp2", GROUPED),
    "deepseek_v3-dp4-graph": ("deepseek_v3", DP4, "graph", LOOP),
    "deepseek_v3-hsdp-ep2-graph": ("deepseek_v3", HSDP_EP2, "graph", GROUPED | DROPOUT),
    "deepseek_v3-ep2-fsdp2": ("deepseek_v3", EP2, "fsdp2", LOOP),
    "deepseek_v3-dp4-ep2-fsdp2": ("deepseek_v3", DP4_EP2, "fsdp2", GROUPED),
    "deepseek_v3-dp4-tp2-ep4-etp1-graph": ("deepseek_v3", ETP1, "graph", LOOP),
    "deepseek_v3-dp4-tp2-ep4-etp1-fsdp2": ("deepseek_v3", ETP1, "fsdp2", {}),
    "deepseek_v3-dp4-tp2-ep4-etp2-graph": ("deepseek_v3", ETP2, "graph", LOOP),
    "llama3-cp2-graph": ("llama3", CP2, "graph", DOCUMENTS | DROPOUT),
    "llama3-cp4-fsdp2": ("llama3", CP4, "fsdp2", DOCUMENTS),
    "llama3-cp4-ulysses-graph": ("llama3", CP4, "graph", ULYSSES | DOCUMENTS),
    "qwen3-cp2-fsdp2": ("qwen3", CP2, "fsdp2", {}),
    "qwen3-cp2-ulysses-fsdp2": ("qwen3", CP2, "fsdp2", ULYSSES | DOCUMENTS | DROPOUT),
    "qwen3_moe-cp2-tp2-graph": ("qwen3_moe", CP2_TP2, "graph", LOOP | DOCUMENTS),
    "qwen3_moe-cp2-ulysses-fsdp2": ("qwen3_moe", CP2, "fsdp2", LOOP | ULYSSES),
    "deepseek_v3-cp2-latent-graph": ("deepseek_v3", CP2, "graph", LATENT | DOCUMENTS),
    "deepseek_v3-cp2-tp2-latent-fsdp2": ("deepseek_v3", CP2_TP2, "fsdp2", LOOP | LATENT),
    "deepseek_v3-cp2-tp2-ulysses-fsdp2": ("deepseek_v3", CP2_TP2, "fsdp2", LOOP | ULYSSES),
    "deepseek_v3-dp2-cp2-ep2-graph": ("deepseek_v3", CP2_DP2_EP2, "graph", GROUPED | DOCUMENTS),
    "deepseek_v3-dp2-cp2-tp2-ep2-graph": ("deepseek_v3", CP2_DP2_TP2_EP2, "graph", LOOP | DOCUMENTS),
    "deepseek_v3-dp2-cp2-tp2-ep2-ulysses-fsdp2": ("deepseek_v3", CP2_DP2_TP2_EP2, "fsdp2", LOOP | ULYSSES),
}


LONG = (
    "deepseek_v3-dp4-tp2-ep4-etp2-graph",
    "deepseek_v3-dp4-ep2-fsdp2",
    "llama3-cp4-ulysses-graph",
    "deepseek_v3-dp4-tp2-ep4-etp1-fsdp2",
    "qwen3_moe-dp4-tp2-ep4-etp2-fsdp2",
    "deepseek_v3-dp4-tp2-ep4-etp1-graph",
    "deepseek_v3-dp4-graph",
    "deepseek_v3-hsdp-ep2-graph",
    "qwen3_moe-dp4-ep2-graph",
    "llama3-dp4-fsdp2",
    "llama3-cp4-fsdp2",
    "qwen3-dp2-fsdp2",
    "qwen3-cp2-fsdp2",
    "qwen3-dp2-tp2-graph",
    "qwen3_moe-cp2-tp2-graph",
    "qwen3_moe-cp2-ulysses-fsdp2",
    "deepseek_v3-cp2-tp2-latent-fsdp2",
    "deepseek_v3-cp2-tp2-ulysses-fsdp2",
    "deepseek_v3-dp2-cp2-ep2-graph",
    "deepseek_v3-dp2-cp2-tp2-ep2-ulysses-fsdp2",
)
"""Of which others show every part."""


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.long if case in LONG else ()) for case in CASES])
def test_a_sharded_plan_computes_what_one_device_computes(case, tmp_path):
    model, (ranks, degrees), fsdp, changes = CASES[case]
    config = tiny(model, tmp_path, changes, fsdp=fsdp, **degrees)
    verdict = pool.run(ranks, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame
    check_everything_was_compared(verdict, config)


def check_everything_was_compared(verdict, config):
    rows = verdict.all.rows.values()
    assert verdict.tolerance == 1e-5
    modules = [f"layers.{layer}" for layer in range(config.model.n_layers)]
    assert {row.path for row in rows if row.forward is not None} >= {"embedding", *modules}
    assert {row.path for row in rows if row.backward is not None} >= {"embedding", *modules}
    with_parameters = [row for row in rows if row.gradient is not None]
    assert config.training.freeze or len(with_parameters) > 8 * len(modules) - 2
    assert all(row.start is not None and row.updated is not None for row in with_parameters)
    routers = [row for row in rows if row.path.endswith("router")]
    moe = config.model.find_moe()
    first = getattr(config.model, "n_dense_layers", 0)
    assert len(routers) == (config.model.n_layers - first if moe else 0)
    assert all(row.routing == 0 for row in routers)
    assert all((row.updated is not None) == moe.router.expert_bias for row in routers)


@pytest.mark.parametrize("model", ["llama3", "qwen3"])
def test_expert_parallelism_of_a_model_without_experts_is_refused(model, tmp_path):
    with pytest.raises(ConfigError, match="expert_parallel_degree is 2") as caught:
        plan_run_mesh(tiny(model, tmp_path, ep=2), 2)
    assert caught.value.why == "this model has no routed experts to spread"


@pytest.mark.long
def test_gradient_accumulation_is_part_of_what_is_compared(tmp_path):
    config = tiny("deepseek_v3", tmp_path, {"training.global_batch_size": 8, "training.local_batch_size": 2}, ep=2)
    verdict = pool.run(2, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame


@pytest.mark.long
@pytest.mark.parametrize("fsdp", ["fsdp2", "graph"])
def test_rows_that_do_not_divide_are_padded_and_nobody_notices(fsdp, tmp_path):
    """A vocabulary of 261 over tp 2 and fsdp 2, a width of 66 over fsdp 4, experts' hidden rows of 18 over 4 ranks."""
    changes = {"model.dim": 66, "model.vocab_size": 261, "model.moe.n_experts": 6, "model.moe.hidden_dim": 18}
    router = {"model.moe.router.n_groups": 3, "model.moe.router.top_groups": 2}
    config = tiny("deepseek_v3", tmp_path, {**changes, **router}, tp=2, ep=1, fsdp=fsdp)
    verdict = pool.run(4, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame
    config = tiny("qwen3_moe", tmp_path, {**changes, "model.attention.head_dim": 10}, ep=2, fsdp=fsdp)
    verdict = pool.run(8, verify_on_ranks, config)[0]
    assert verdict.is_equal, verdict.blame

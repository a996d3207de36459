"""FlexAttention in models: functions by name, what they may ask for, and what is refused."""

import pytest
import torch

from monograph.commands.precompile import CannotPrecompile, precompile
from monograph.config.configurable import check_config
from monograph.errors import ConfigError
from monograph.models.attention_kind import CAUSAL
from monograph.models.flex_mods import FlexSpec
from monograph.models.gpt_oss.sizes import gpt_oss_debugmodel
from monograph.models.llama3.hf import to_hf_config
from monograph.models.llama4.sizes import llama4_debugmodel
from monograph.models.score_mods import add_alibi, cap_softly
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from tests.execute.updates import normalizers_of
from tests.kit.small import SMALL, VOCAB, build

CPU = torch.device("cpu")
TABLE = torch.arange(4)
SEEN = {}


def within_16(batch, head, query, key):
    return (query >= key) & (query - key < 16)


def same_text(batch, head, query, key, *, documents, positions, tokens, kind, n_heads):
    SEEN.update(kind=kind, n_heads=n_heads, shapes=[tuple(each.shape) for each in (documents, positions, tokens)])
    return (query >= key) & (positions[batch, key] < 8) & (tokens[batch, key] >= 0)


def too_short(batch, head):
    return batch == head


def asks_for_more(batch, head, query, key, colour):
    return query >= key


def holds_a_tensor(score, batch, head, query, key):
    return score + TABLE[head]


def flex(family="llama3", **changes):
    config = SMALL[family](mask="document")
    return config.replace(attention=config.attention.replace(kernel="flex", **changes))


def make_batch(length=40):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, VOCAB, (2, length), generator=generator)
    documents = (torch.arange(length) // 15).expand(2, length).contiguous()
    return {"tokens": tokens, "positions": torch.arange(length).expand(2, length) % 15, "documents": documents}


def predict(config):
    with torch.no_grad():
        return build(config).eval().predict(**make_batch())


@pytest.mark.parametrize("family", ["llama3", "deepseek_v3"])
def test_without_functions_it_computes_what_the_attention_op_computes(family):
    torch.testing.assert_close(predict(flex(family)), predict(SMALL[family](mask="document")), rtol=0, atol=1e-5)


def test_chunked_layers_see_their_chunks():
    config = llama4_debugmodel().replace(n_layers=4, chunk=8, mask="document")
    found = predict(config.replace(attention=config.attention.replace(kernel="flex")))
    torch.testing.assert_close(found, predict(config), rtol=0, atol=1e-5)


def test_a_mask_function_replaces_what_layers_see_and_documents_stay_apart():
    model = build(flex(mask_mod=within_16)).eval()
    batch = make_batch(60)
    changed = dict(batch, tokens=batch["tokens"].clone())
    changed["tokens"][:, 20] += 1
    with torch.no_grad():
        before, after = (model.predict(**each) for each in (batch, changed))
    differs = (before != after).any(-1).any(0)
    assert differs[20:30].any() and not differs[:20].any() and not differs[30:].any()


def test_a_function_gets_what_it_asks_for_by_name():
    config = flex(mask_mod=same_text)
    predict(config)
    assert {"kind": "causal", "n_heads": config.attention.n_heads, "shapes": [(2, 40)] * 3} == SEEN


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (FlexSpec(CAUSAL, 4, too_short), "too_short, which takes"),
        (FlexSpec(CAUSAL, 4, asks_for_more), "asks_for_more, which asks for colour"),
        (FlexSpec(CAUSAL, 4, same_text), "same_text, which asks for documents, and model.mask is causal"),
        (FlexSpec(CAUSAL, 4, None, holds_a_tensor), "holds_a_tensor, which reads the tensor TABLE"),
    ],
)
def test_functions_that_cannot_be_called_are_refused(spec, what):
    with pytest.raises(ConfigError, match=what):
        spec.check()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"parallelism.context_parallel_degree": 2}, "context_parallel_degree is 2"),
        ({"passes.off": ("compile_flex",)}, "passes.off has compile_flex"),
        ({"compile.mode": "layer", "debug.device": "cpu"}, "compile.mode is layer and the device is a CPU"),
        ({"passes.on": ("compile_whole",), "debug.device": "cpu"}, "passes.on has compile_whole"),
        ({"model.attention.kernel": "auto"}, "score_mod is given and kernel is auto"),
    ],
)
def test_what_does_not_work_with_it_is_refused_by_name(changes, what):
    with pytest.raises(ConfigError, match=what):
        change(load_recipe("llama3_debugmodel_flex"), changes)


def test_blocks_cut_along_the_sequence_are_refused_and_their_experts_are_not():
    config = load_recipe("deepseek_v3_debugmodel_flex")
    chunks = {"compile.expert_overlap.strategy": "trace", "compile.expert_overlap.chunk_dim": "seq"}
    off = {"passes.off": ("overlap_experts",)}
    with pytest.raises(ConfigError, match="covers attention"):
        change(config, chunks | off)
    change(config, chunks | off | {"compile.expert_overlap.modules": "layers.*.moe"})


def test_gpt_oss_refuses_it_for_its_sinks():
    with pytest.raises(ConfigError, match="FlexAttention has no sinks"):
        gpt_oss_debugmodel().attention.replace(kernel="flex").check()


def test_it_is_not_exported_with_functions_and_not_precompiled_for_a_cpu(tmp_path):
    config = load_recipe("llama3_debugmodel_flex")
    with pytest.raises(ConfigError, match="score_mod is given"):
        to_hf_config(config.model)
    config = change(config, {"debug.device": "cpu"})
    with pytest.raises(CannotPrecompile, match="kernel is flex and the device is a CPU"):
        precompile(config, Mesh(), tmp_path / "made")


def change(config, changes):
    """The config with fields changed by their path."""
    for path, value in changes.items():
        config = replace_at(config, path.split("."), value)
    check_config(config)
    return config


def replace_at(config, path, value):
    first, *rest = path
    return config.replace(**{first: replace_at(getattr(config, first), rest, value) if rest else value})


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("llama3_debugmodel_flex", {}),
        pytest.param("deepseek_v3_debugmodel_flex", {}, marks=pytest.mark.long),
        pytest.param("llama3_debugmodel_flex", {"activation_checkpoint.mode": "full"}, marks=pytest.mark.long),
        pytest.param(
            "deepseek_v3_debugmodel_flex",
            {
                "compile.expert_overlap.strategy": "trace",
                "compile.expert_overlap.chunk_dim": "seq",
                "compile.expert_overlap.modules": "layers.*.moe",
            },
            marks=pytest.mark.long,
        ),
        pytest.param(
            "deepseek_v3_debugmodel_flex",
            {"compile.expert_overlap.strategy": "trace"},
            marks=pytest.mark.long,
        ),
    ],
    ids=["llama3", "deepseek_v3", "full recompute", "experts along the sequence", "blocks along the batch"],
)
def test_the_captured_step_has_the_bits_of_the_eager_one(recipe, changes):
    shared = {
        "model.n_layers": 2,
        "training.local_batch_size": 2,
        "training.seq_len": 32,
        "parallelism.fsdp": "graph",
        **changes,
    }
    modes = [{"compile.mode": "eager"}, {"compile.mode": "graph"}]
    if "compile.expert_overlap.strategy" in changes:
        modes[1]["passes.off"] = ("overlap_experts",)  # on one rank there is nothing to overlap
    with joined_groups(Mesh(), CPU) as groups:
        eager, graph = (build_step(change(load_recipe(recipe), mode | shared), groups) for mode in modes)
        tokens = torch.randint(0, 250, (2, 32), generator=torch.Generator().manual_seed(0))
        documents = torch.stack([torch.arange(32) // 9, torch.arange(32) // 20])
        batch = {"tokens": tokens, "labels": tokens, "positions": tokens * 0, "documents": documents}
        assert torch.equal(*(step(batch, normalizers_of(step, valid_tokens=60)) for step in (eager, graph)))
        for name, parameter in eager.parameters.items():
            assert torch.equal(parameter.grad, graph.parameters[name].grad), name


def test_a_score_function_changes_what_is_predicted():
    assert not torch.equal(predict(flex()), predict(flex(score_mod=add_alibi)))


def test_score_functions_of_recipes_are_those_of_the_papers():
    score, head, query, key = torch.tensor(2.0), torch.tensor(1), torch.tensor(7), torch.tensor(4)
    assert add_alibi(score, None, head, query, key, n_heads=8).item() == 2.0 - 3 * 2.0**-2
    assert cap_softly(torch.tensor(1e6), None, head, query, key).item() == 30.0

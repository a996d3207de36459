"""Starting values follow from the seed and the names alone."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.models import init
from monograph.models.init import initialize, materialize, plan_init
from monograph.models.random_normal import draw
from tests.kit.small import SMALL, batch, build, small_deepseek_v3, small_llama3, small_qwen3


def state(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@pytest.mark.parametrize("family", SMALL)
def test_a_model_from_meta_equals_one_built_in_place(family):
    config = SMALL[family]()
    direct = config.build()
    initialize(direct, 7)
    with torch.device("meta"):
        emptied = config.build()
    emptied = emptied.to_empty(device="cpu")
    initialize(emptied, 7)
    for other in (emptied, build(config, seed=7)):
        assert state(direct).keys() == state(other).keys()
        assert all(torch.equal(value, state(other)[name]) for name, value in state(direct).items())
        assert torch.equal(direct.predict(batch()[0]), other.predict(batch()[0]))
    assert (emptied.head.output.weight is emptied.embedding.weight) == config.tied_embeddings


def test_values_differ_by_seed_and_by_name():
    first, again, other = (build(small_llama3(), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    drawn = [name for name, start in plan_init(first).items() if isinstance(start, init.Normal)]
    pairs = dict(first.named_parameters()), dict(other.named_parameters())
    assert all(not torch.equal(pairs[0][name], pairs[1][name]) for name in drawn)
    blocks = [first.layers[layer].attention.wq.weight for layer in range(2)]
    assert not torch.equal(*blocks)
    assert not torch.equal(first.layers[0].feed_forward.w1.weight, first.layers[0].feed_forward.w3.weight)


def test_other_layers_and_other_random_numbers_do_not_change_a_parameter():
    torch.manual_seed(1)
    shallow = build(small_llama3(n_layers=2))
    torch.randn(10)
    deep = build(small_llama3(n_layers=4))
    assert torch.equal(shallow.layers[1].attention.wq.weight, deep.layers[1].attention.wq.weight)


def test_a_model_is_filled_with_what_its_shards_would_draw():
    model = build(small_deepseek_v3(), seed=5)
    for name, start in plan_init(model).items():
        parameter = model.get_parameter(name)
        if isinstance(start, init.Normal):
            expected = torch.empty(parameter.shape).flatten(0, -2)
            draw(expected, 5, name, width=parameter.shape[-1], std=start.std)
            assert torch.equal(parameter, expected.view_as(parameter))
        else:
            assert (parameter == start.value).all()


def test_what_writes_to_the_residual_stream_starts_narrower_with_depth():
    plan = plan_init(small_deepseek_v3(n_layers=8).build())
    assert plan["layers.3.attention.wo.weight"].std == pytest.approx(0.2 / 4)
    assert plan["layers.3.moe.experts.w2"].std == pytest.approx(0.2 / 4)
    assert plan["layers.3.moe.experts.w1"].std == pytest.approx(0.2)


def test_bf16_weights_are_the_rounded_fp32_ones_and_buffers_keep_their_dtype():
    config = small_deepseek_v3()
    wide, narrow = build(config), build(config, dtype=torch.bfloat16)
    for a, b in zip(wide.parameters(), narrow.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b)
    for a, b in zip(wide.buffers(), narrow.buffers(), strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b)


def test_initializing_again_clears_biases():
    model = build(small_deepseek_v3())
    model.layers[1].moe.router.expert_bias.fill_(1.0)
    initialize(model, 0)
    assert (model.layers[1].moe.router.expert_bias == 0).all()


def test_a_parameter_nobody_describes_is_an_error():
    model = small_qwen3().build()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(ConfigError, match="extra"):
        initialize(model, 0)


def test_materialized_parameters_keep_whether_they_learn():
    with torch.device("meta"):
        model = small_llama3().build()
    model.embedding.weight.requires_grad_(False)
    materialize(model, device="cpu", dtype=torch.float32)
    assert not model.embedding.weight.requires_grad and model.head.output.weight.requires_grad


def test_layers_of_torch_start_as_usual_and_ties_stay_ties():
    with torch.device("meta"):
        layers = {"a": torch.nn.Embedding(7, 8), "b": torch.nn.Linear(8, 7), "c": torch.nn.LayerNorm(8)}
    model = torch.nn.ModuleDict(layers)
    model["b"].weight = model["a"].weight
    materialize(model, device="cpu", dtype=torch.float32)
    assert model["b"].weight is model["a"].weight
    initialize(model, 3)
    assert 0.01 < model["a"].weight.std() < 0.03
    assert (model["c"].weight == 1).all() and not model["c"].bias.any() and not model["b"].bias.any()

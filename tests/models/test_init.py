"""Starting values follow from the seed and the names alone."""

import itertools
import sys

import pytest
import torch

from monograph.models import init
from monograph.models.init import (
    CUT,
    draw_rows,
    fill_parts,
    initialize,
    materialize,
    plan_init,
    plan_parts,
    rows_in_piece,
)
from tests.models.small import SMALL, batch, build, small_deepseek_v3, small_llama3, small_qwen3


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
        assert torch.equal(direct(batch()[0]).value, other(batch()[0]).value)
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


@pytest.mark.parametrize("shape", [(40, 6), (5, 8, 6)])
@pytest.mark.parametrize("piece", [13, 60, 1000])
def test_a_shard_draws_exactly_its_own_rows(shape, piece, monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", piece)
    whole = draw_rows(3, "layers.0.w", shape, 0.02)
    assert whole.shape == (40, 6)
    for start, stop in ((0, 40), (0, 1), (7, 9), (8, 32), (39, 40)):
        assert torch.equal(draw_rows(3, "layers.0.w", shape, 0.02, start, stop), whole[start:stop])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [slice(None), slice(2, 5)])
def test_rows_drawn_to_a_given_place_are_the_same_whatever_its_dtype_and_strides(columns, dtype, monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", 60)
    whole = draw_rows(3, "w", (40, 6), 0.02)
    for start, stop in ((0, 40), (7, 9), (8, 32)):
        wanted = whole[start:stop, columns].to(dtype)
        wide = torch.full((stop - start, 9), 7.0, dtype=dtype)
        for place in (torch.empty_like(wanted), wide[:, 1 : 1 + wanted.shape[1]]):
            assert draw_rows(3, "w", (40, 6), 0.02, start, stop, columns=columns, out=place) is place
            assert torch.equal(place, wanted)
        assert (wide[:, 0] == 7).all() and (wide[:, 1 + wanted.shape[1] :] == 7).all(), "nothing beside it is written"


@pytest.mark.parametrize("first", [0, 3, 40])
def test_parts_cover_a_run_of_rows_once_and_are_cut_between_pieces(first, monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", 60)
    parts = list(plan_parts(torch.empty(93, 6), "w", (200, 6), 0.02, first))
    step = init.PIECES_AT_ONCE * rows_in_piece(6)
    assert parts[0].start == first and parts[-1].stop == first + 93
    assert all(a.stop == b.start and a.stop % step == 0 for a, b in itertools.pairwise(parts))
    assert all(len(part.target) == part.stop - part.start <= step for part in parts)


def test_an_error_while_drawing_reaches_the_caller(monkeypatch):
    def fail(seed, name, *others, **kwargs):
        raise MemoryError(name)

    monkeypatch.setattr(init, "draw_piece", fail)
    with pytest.raises(MemoryError, match="w1"):
        fill_parts(list(plan_parts(torch.empty(9, 6), "w1", (9, 6), 0.02)), 0)


def test_nothing_to_draw_is_no_error():
    fill_parts([], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [slice(None), slice(2, 5)])
def test_a_gpu_starts_with_the_same_numbers_as_a_cpu(columns, dtype, monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", 6000)
    whole = draw_rows(3, "w", (80_000, 6), 0.02)[:, columns]
    target = torch.empty(80_000, 9, dtype=dtype, device="cuda")
    for place in (torch.empty(whole.shape, dtype=dtype, device="cuda"), target[:, : whole.shape[1]]):
        torch.cuda._sleep(10_000_000)  # what uses the memory before must not come after
        place.fill_(7)
        fill_parts(list(plan_parts(place, "w", (80_000, 6), 0.02, columns=columns)), 3)
        assert torch.equal(place.cpu(), whole.to(dtype))


def test_a_model_is_filled_with_what_its_shards_would_draw(monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", 100)
    model = build(small_deepseek_v3(), seed=5)
    for name, start in plan_init(model).items():
        parameter = model.get_parameter(name)
        if isinstance(start, init.Normal):
            expected = draw_rows(5, name, tuple(parameter.shape), start.std).view_as(parameter)
            assert torch.equal(parameter, expected)
        else:
            assert (parameter == start.value).all()


def test_pieces_are_not_copies_of_each_other(monkeypatch):
    monkeypatch.setattr(init, "PIECE_NUMEL", 60)
    rows = draw_rows(0, "w", (100, 6), 1.0)
    assert len({tuple(row.tolist()) for row in rows}) == 100


def test_values_have_the_width_asked_for_and_no_outliers():
    values = draw_rows(0, "w", (2000, 100), 0.02)
    assert values.std().item() == pytest.approx(0.02, rel=0.02) and abs(values.mean().item()) < 2e-4
    assert values.abs().max() <= CUT * 0.02 * (1 + 1e-6)


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


def test_initializing_again_clears_biases_and_counters():
    model = build(small_deepseek_v3())
    model.expert_load.fill_(3)
    model.layers[1].moe.router.expert_bias.fill_(1.0)
    initialize(model, 0)
    assert (model.expert_load == 0).all() and (model.layers[1].moe.router.expert_bias == 0).all()


def test_a_parameter_nobody_describes_is_an_error():
    model = small_qwen3().build()
    model.extra = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match="extra"):
        initialize(model, 0)


def test_materialized_parameters_keep_whether_they_learn():
    with torch.device("meta"):
        model = small_llama3().build()
    model.embedding.weight.requires_grad_(False)
    materialize(model, device="cpu", dtype=torch.float32)
    assert not model.embedding.weight.requires_grad and model.head.output.weight.requires_grad


def test_drawing_gets_pythons_lock_soon_and_gives_the_setting_back(monkeypatch):
    seen, before = [], sys.getswitchinterval()
    monkeypatch.setattr(init, "_fill", lambda *_: seen.append(sys.getswitchinterval()) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fill_parts(list(plan_parts(torch.empty(4, 4), "w", (4, 4), 0.02)), 0)
    assert seen == [pytest.approx(init.SWITCH_SECONDS)]
    assert sys.getswitchinterval() == before

"""Random numbers by seed and position: how they are spread, and that nothing else matters."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from monograph.errors import ConfigError
from monograph.graph.allowed_ops import allow_op
from monograph.graph.query import is_random
from monograph.kernels.counter_random import stream_of
from monograph.kernels.random import DROPOUT, RANDOM_UNIFORM, dropout, random_uniform

COUNT = 1 << 20
SEED = torch.tensor(42)
POSITIONS = torch.arange(COUNT)
CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)


def draw(seed=42, positions=POSITIONS, stream="layers.0"):
    """The number at every position, each as a row of one."""
    return random_uniform(torch.tensor(seed), positions, 1, stream).squeeze(-1)


def drawn_by_hand(key, position):
    """The same in Python's integers."""
    mask = 2**64 - 1

    def mix(bits, shift, factor):
        return (bits ^ (bits >> shift)) * factor & mask

    step, first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    begin = mix(mix(key * step & mask, 30, first), 27, second)
    bits = mix((position * step + begin) & mask, 30, first) ^ mix(begin ^ key, 30, second)
    return (mix(bits, 27, second) >> 40) / 2**24


@pytest.mark.parametrize("device", [CPU, GPU])
def test_numbers_are_those_of_the_mixing_done_by_hand(device):
    starts = [0, 3, 77, 2**31 - 2, 2**32, 10**15]
    for seed, stream in ((0, "a"), (5, "layers.3.dropout"), (2**62, "b"), (-1, "c")):
        found = random_uniform(torch.tensor(seed, device=device), torch.tensor(starts, device=device), 3, stream)
        key = (seed + stream_of(stream)) % 2**64
        assert found.tolist() == [[drawn_by_hand(key, start + column) for column in range(3)] for start in starts]


def test_numbers_are_spread_evenly_between_zero_and_one():
    """Bounds of five standard deviations of each statistic."""
    found = draw().double()
    assert 0.0 <= found.min() < 1e-4 and 1 - 1e-4 < found.max() < 1.0
    assert abs(found.mean() - 1 / 2) < 5 * (1 / 12 / COUNT) ** 0.5
    assert abs(found.var() - 1 / 12) < 5 * (1 / 180 / COUNT) ** 0.5
    counts = torch.histc(found, 256, 0, 1)
    chi_square = ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum()
    assert abs(chi_square - 255) < 5 * (2 * 255) ** 0.5


def correlation(one, other):
    return torch.corrcoef(torch.stack((one, other)).double())[0, 1].abs().item()


@pytest.mark.parametrize("distance", [1, 2, 64, 4096])
def test_neighbours_are_independent(distance):
    found = draw()
    assert correlation(found[:-distance], found[distance:]) < 5 / COUNT**0.5


@pytest.mark.parametrize(
    "other", [{"seed": 43}, {"seed": -42}, {"stream": "layers.1"}, {"positions": POSITIONS + COUNT}]
)
def test_other_seeds_streams_and_positions_are_independent(other):
    found = draw(**other)
    assert correlation(draw(), found) < 5 / COUNT**0.5
    assert (draw() == found).double().mean() < 1e-5, "a share of two to the minus 24 is equal by chance"


def test_the_average_over_seeds_is_even_at_every_position():
    """A training run draws at the same positions with a new seed in every step."""
    found = torch.stack([draw(seed, POSITIONS[:256]) for seed in range(4096)]).double()
    assert (found.mean(0) - 0.5).abs().max() < 6 * (1 / 12 / 4096) ** 0.5
    assert correlation(found[:-1].flatten(), found[1:].flatten()) < 5 / found.numel() ** 0.5


def test_parts_any_order_and_a_second_time_give_the_same_numbers():
    starts = torch.arange(1024) * 1024
    whole = random_uniform(SEED, starts, 1024, "layers.0")
    assert torch.equal(whole, random_uniform(SEED, starts, 1024, "layers.0"))
    assert torch.equal(whole.flatten(), draw()), "rows are only a way to count"
    assert torch.equal(whole[100:200], random_uniform(SEED, starts[100:200], 1024, "layers.0")), "a shard of the rows"
    assert torch.equal(whole[:, 512:], random_uniform(SEED, starts + 512, 512, "layers.0")), "a shard of the columns"
    assert torch.equal(whole.flatten().flip(0), draw(positions=POSITIONS.flip(0)))


def test_torchs_generator_is_neither_read_nor_moved_on():
    before = torch.get_rng_state()
    first = draw()
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(999)
    assert torch.equal(first, draw())


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_has_the_bits_of_a_cpu(dtype):
    value = torch.randn(1000, 1001).to(dtype)
    args = SEED, torch.arange(1000) * 1001
    on_gpu = [each.cuda() for each in args]
    assert torch.equal(random_uniform(*args, 1001, "s"), random_uniform(*on_gpu, 1001, "s").cpu())
    assert torch.equal(dropout(value, *args, 0.1), dropout(value.cuda(), *on_gpu, 0.1).cpu())


def test_a_graph_has_one_node_that_is_not_random_and_gives_the_bits_of_eager_for_any_seed():
    def step(seed, positions):
        return random_uniform(seed, positions, 4, "noise") * 2

    graph = make_fx(step, tracing_mode="fake")(SEED, POSITIONS)
    nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
    assert [node.target for node in nodes].count(RANDOM_UNIFORM) == 1 and not any(map(is_random, nodes))
    for seed in (1, 42):
        assert torch.equal(graph(torch.tensor(seed), POSITIONS), step(torch.tensor(seed), POSITIONS))


def test_dropout_saves_no_mask_and_keeps_its_share():
    value = torch.ones(1024, 1024, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        result = dropout(value, SEED, torch.arange(1024) * 1024, 0.25)
    assert {(each.dtype, each.numel()) for each in saved} == {(torch.int64, 1), (torch.int64, 1024)}, "key, starts"
    share = (result != 0).double().mean()
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / COUNT) ** 0.5
    assert torch.equal(torch.autograd.grad(result.sum(), value)[0], result), "the gradient of ones is the same mask"
    assert result.unique().tolist() == [0.0, torch.tensor(1 / 0.75).item()]


def test_what_is_no_seed_position_or_probability_is_refused():
    value = torch.ones(4)
    for seed, positions in ((torch.tensor(1.0), POSITIONS), (torch.tensor([1]), POSITIONS), (SEED, POSITIONS.int())):
        with pytest.raises(ConfigError, match="seed"):
            random_uniform(seed, positions, 1, "s")
    with pytest.raises(ConfigError, match="positions"):
        dropout(value, SEED, POSITIONS, 0.1)
    for probability in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="must be >= 0 and < 1"):
            dropout(value, SEED, torch.tensor(0), probability)


def test_ops_of_torchs_generators_cannot_be_allowed_and_the_advice_names_these():
    with pytest.raises(ConfigError) as error:
        allow_op("aten.native_dropout.default", reason="dropout")
    assert "mg.random_uniform" in error.value.do
    assert torch.Tag.nondeterministic_seeded not in DROPOUT.tags

"""join_parameters: merged matmuls read parameters where they are stored; no bit of a run changes."""

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.graph.cast_weights import CachedCast, find_cached_casts, find_castings, find_joined
from monograph.graph.memory import find_memory
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from monograph.run import build_step
from tests.execute.updates import differences, make_updates, one_rank, small
from tests.kit.pipelines import capture_small
from tests.passes.written import ByHand, check_text, run

BF16 = {"training.dtype": "bfloat16", "training.compute_dtype": "bfloat16"}
LEAN = {
    **BF16,
    "compile.mode": "graph",
    "compile.numerics": "fast",
    "parallelism.fsdp": "graph",
    "optimizer.implementation": "single_pass",
    "optimizer.store_param_remainders": True,
}
QUERIES, KEYS, VALUES = (f"layers.0.attention.{name}.weight" for name in ("wq", "wk", "wv"))


def test_parameters_below_each_other_are_marked_and_each_once():
    hand = ByHand()
    a, b, c = (hand.input(name, rows, 4) for name, rows in (("a", 4), ("b", 8), ("c", 8)))
    both = hand.call(ATEN.cat.default, [a, b], 0)
    again = hand.call(ATEN.cat.default, [b, c], 0)
    beside = hand.call(ATEN.cat.default, [b, c], 1)
    twice = hand.call(ATEN.cat.default, [a, b], 0)
    parts = [hand.call(ATEN.sum.default, each) for each in (both, again, beside, twice)]
    graph = hand.done(hand.call(ATEN.stack.default, parts))
    assert run("join_parameters", graph) == "2 parameters stored in 1 buffer"
    check_text(
        graph,
        """
        forward:
          0: float32[12, 4] = cat([%a, %b], 0)  # once
          1: float32[16, 4] = cat([%b, %c], 0)
          2: float32[8, 8] = cat([%b, %c], 1)
          3: float32[12, 4] = cat([%a, %b], 0)  # once
          4: float32[] = sum(f.0)
          5: float32[] = sum(f.1)
          6: float32[] = sum(f.2)
          7: float32[] = sum(f.3)
          8: float32[4] = stack([f.4, f.5, f.6, f.7])
        backward:
          return f.8
        """,
    )
    assert find_joined(graph) == {CachedCast(("a", "b"), torch.float32)}


def test_a_parameter_that_would_not_begin_at_a_multiple_of_16_bytes_is_left_alone():
    hand = ByHand()
    a, b = hand.input("a", 3, 3), hand.input("b", 4, 3)
    graph = hand.done(hand.call(ATEN.sum.default, hand.call(ATEN.cat.default, [a, b], 0)))
    assert run("join_parameters", graph) == "0 parameters stored in 0 buffers"


def test_joined_parameters_are_views_of_a_buffer_and_stay_the_same_objects():
    parameters = {name: torch.randn(rows, 4).bfloat16().requires_grad_() for name, rows in (("a", 4), ("b", 6))}
    held, values = dict(parameters), {name: each.detach().clone() for name, each in parameters.items()}
    cache = CastWeightCache(parameters)
    buffer = cache.get(CachedCast(("a", "b"), torch.bfloat16))
    assert torch.equal(buffer, torch.cat([values["a"], values["b"]]))
    assert all(held[name] is parameters[name] and torch.equal(held[name], values[name]) for name in values)
    with torch.no_grad():
        held["b"].fill_(3.0)
    assert buffer[4:].eq(3.0).all() and cache.find_copy("b") is None
    other = cache.get(CachedCast(("b", "a"), torch.bfloat16))
    cache.refresh()
    assert torch.equal(other, torch.cat([held["b"], held["a"]])), "in another order it is a copy"


def test_joined_parameters_cost_no_memory():
    for off in ((), ("join_parameters",)):
        graph, facts = capture_small("llama3", Mesh(), **BF16)
        config = PassesConfig(on=("merge_matmuls",), off=off)
        run_passes(graph, build_passes(config), facts, is_measured=False)
        assert ((QUERIES, KEYS, VALUES) in {kept.slots for _, kept in find_cached_casts(graph)}) is (not off)
        matrices = [node for node in find_castings(graph) if node.target is ATEN.cat.default]
        held = {each.node for each in find_memory(graph).held}
        assert matrices and held.isdisjoint(matrices) is (not off)


@pytest.mark.parametrize("more", [{}, pytest.param({"compile.numerics": "float8"}, marks=pytest.mark.long)])
def test_updates_have_the_bits_of_parameters_that_are_joined_in_every_step(more, tmp_path):
    made = {}
    for off in ((), ("join_parameters",)):
        config = small("llama3", tmp_path / str(len(off)), {**LEAN, **more, "model.n_layers": 1, "passes.off": off})
        with one_rank(config) as groups:
            made[off] = make_updates(config, groups)
    assert differences(made[()], made["join_parameters",]) == []


def test_a_step_reads_the_parameters_that_a_checkpoint_holds(tmp_path):
    with one_rank(config := small("llama3", tmp_path, {**LEAN, "model.n_layers": 1})) as groups:
        step = build_step(config, groups)
        storages = {name: step.parameters[name].untyped_storage().data_ptr() for name in (QUERIES, KEYS, VALUES)}
        assert len(set(storages.values())) == 1
        held = step.state()[QUERIES].to_local()
        assert held.untyped_storage().data_ptr() == storages[QUERIES] and held.is_contiguous()
        step.close()

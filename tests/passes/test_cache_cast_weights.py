"""cache_cast_weights: parameters are cast once an update, and whatever changes them is seen by the next step."""

import math

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.graph.cast_weights import CachedCast, find_cached_casts, is_cached_cast
from monograph.graph.memory import find_memory
from monograph.graph.signature import InputKind
from monograph.parallel.mesh import Mesh
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from monograph.run import build_step
from monograph.train.build_optimizer import build_optimizer
from monograph.train.update import add_gradients, apply_update
from tests.execute.updates import differences, make_updates, one_rank, read_batches, small
from tests.kit.pipelines import capture_small, make_pass
from tests.passes.written import ByHand, check_text, run

KEPT = PassesConfig(on=("cache_cast_weights",))
BF16 = {"training.compute_dtype": "bfloat16"}
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph", **BF16}
ASKED = {**GRAPH, "passes.on": ("cache_cast_weights",)}


def test_casts_of_parameters_are_marked_and_nothing_else():
    hand = ByHand()
    a, b = hand.input("a", 4, 4), hand.input("b", 2, 4)
    narrow = [hand.call(ATEN._to_copy.default, each, dtype=torch.bfloat16) for each in (a, b)]
    both = hand.call(ATEN.cat.default, narrow, 0)
    matmul = hand.call(ATEN.mm.default, both, narrow[0])
    wide = hand.call(ATEN._to_copy.default, matmul, dtype=torch.float32)
    graph = hand.done(hand.call(ATEN.sum.default, wide))
    assert run("cache_cast_weights", graph, config=KEPT) == "2 parameters cast once per update"
    check_text(
        graph,
        """
        forward:
          0: bfloat16[4, 4] = _to_copy(%a, dtype=bfloat16)  # once
          1: bfloat16[2, 4] = _to_copy(%b, dtype=bfloat16)  # once
          2: bfloat16[6, 4] = cat([f.0, f.1], 0)  # once
          3: bfloat16[6, 4] = mm(f.2, f.0)
          4: float32[6, 4] = _to_copy(f.3, dtype=float32)
          5: float32[] = sum(f.4)
        backward:
          return f.5
        """,
    )
    kept = dict(find_cached_casts(graph))
    assert set(kept.values()) == {CachedCast(("a", "b"), torch.bfloat16), CachedCast(("a",), torch.bfloat16)}


def test_a_step_without_casts_has_nothing_to_keep():
    graph, facts = capture_small("llama3", Mesh())
    assert make_pass("cache_cast_weights", KEPT).run(graph, facts) == "0 parameters cast once per update"


def test_casts_stay_out_of_compiled_regions():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    for name in ("cache_cast_weights", "mark_regions"):
        config = KEPT.replace(mark_regions=MarkRegionsConfig(regions=("blocks", "outside")))
        make_pass(name, config).run(graph, facts)
    once = [node for node in graph.nodes if is_cached_cast(node)]
    assert once
    assert not [node for node in once if node.meta["monograph_tag"].compile]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"optimizer.implementation": "single_pass"}, marks=pytest.mark.long),
        pytest.param({"optimizer.implementation": "foreach"}, marks=pytest.mark.long),
        {"optimizer.implementation": "single_pass", "parallelism.reshard_after_forward": False},
    ],
)
def test_steps_with_kept_weights_have_the_bits_of_steps_that_cast(changes, tmp_path):
    made = {}
    for name, asked in (("cast", GRAPH), ("kept", ASKED)):
        config = small("llama3", tmp_path, {**asked, **changes, "model.n_layers": 1})
        with one_rank(config) as groups:
            made[name] = make_updates(config, groups)
    assert differences(made["cast"], made["kept"]) == []


@pytest.fixture
def step(tmp_path):
    config = small("llama3", tmp_path, {**ASKED, "optimizer.implementation": "single_pass"})
    with one_rank(config) as groups:
        built = build_step(config, groups)
        yield config, built
        built.close()


def test_whatever_changes_the_weights_is_seen_by_the_next_step(step):
    config, step = step
    batches = read_batches(config, step, 1)
    first = add_gradients(step, batches)
    assert torch.equal(first, add_gradients(step, batches))
    with torch.no_grad():
        step.parameters["layers.0.feed_forward.w1.weight"].mul_(3.0)
    changed = add_gradients(step, batches)
    assert not torch.equal(first, changed)
    with torch.no_grad():
        step.state()["layers.0.feed_forward.w1.weight"].to_local().div_(3.0)
    assert not torch.equal(changed, add_gradients(step, batches)), "through the checkpoint's view too"


def test_the_optimizer_writes_copies_and_nobody_copies_again(step, monkeypatch):
    config, step = step
    optimizer = config.optimizer.build(parameters=step.parameters, weight_cache=step.weight_cache)
    batches = read_batches(config, step, 1)
    loss = add_gradients(step, batches)
    apply_update(step, optimizer, loss=loss, lr=0.1, max_norm=1.0)
    name = "layers.0.feed_forward.w1.weight"
    copy = step.weight_cache.find_copy(name)
    assert copy is not None, "it is known to be current"
    assert torch.equal(copy, step.parameters[name].to(torch.bfloat16))
    copied = []
    monkeypatch.setattr(torch.Tensor, "copy_", lambda self, other: copied.append(tuple(self.shape)))
    step.weight_cache.refresh()
    assert copied == [], "all were written by the optimizer"
    step.weight_cache.expect_update()
    step.weight_cache.refresh()
    assert copied, "but not by the next update: whoever updates has to say so again"


def test_weights_are_cast_once_after_an_update_however_many_evaluations_and_steps_follow(tmp_path, monkeypatch):
    config = small("llama3", tmp_path, {**ASKED, "optimizer.implementation": "foreach", "validator.interval": 1})
    casts = []
    with one_rank(config) as groups:
        step = build_step(config, groups)
        optimizer = build_optimizer(config.plan_optimizer(), step)
        cached = {each.untyped_storage().data_ptr() for each in step.weight_cache.buffers}
        copy = torch.Tensor.copy_

        def count(self, *args, **kwargs):
            casts.append(self.untyped_storage().data_ptr() in cached)
            return copy(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, "copy_", count)
        counts, batches = [], read_batches(config, step, 1)

        def run(work):
            casts.clear()
            result = work()
            counts.append(sum(casts))
            return result

        scalars = step.compute_scalars([each.tensors for each in batches])
        evaluate = lambda: step.evaluate(batches[0].tensors, scalars)  # noqa: E731
        loss = run(lambda: add_gradients(step, batches))
        before = [float(run(evaluate)) for _ in range(2)]
        apply_update(step, optimizer, loss=loss, lr=0.1, max_norm=1.0)
        after = [float(run(evaluate)) for _ in range(2)]
        run(lambda: add_gradients(step, batches))
        step.close()
    assert counts == [counts[0], 0, 0, counts[0], 0, 0] and counts[0] > 0
    assert before[0] == before[1] != after[0] == after[1]


def test_two_copies_of_one_parameter_are_both_refreshed():
    parameters = {"a": torch.ones(2, 3), "b": torch.ones(1, 3)}
    kept = CastWeightCache(parameters)
    both, alone = kept.get(CachedCast(("a", "b"), torch.bfloat16)), kept.get(CachedCast(("a",), torch.bfloat16))
    assert kept.get(CachedCast(("a",), torch.bfloat16)) is alone
    kept.refresh()
    parameters["a"].mul_(2.0)
    assert kept.find_copy("a") is None, "two places: the optimizer would write only one"
    assert kept.find_copy("b") is not None
    kept.refresh()
    assert both.tolist() == [[2.0] * 3, [2.0] * 3, [1.0] * 3]
    assert alone.tolist() == [[2.0] * 3] * 2


def test_joined_weights_are_kept_joined():
    graph, facts = capture_small("llama3", Mesh(), **BF16)
    config = PassesConfig(on=("cache_cast_weights", "merge_matmuls"))
    run_passes(graph, build_passes(config), facts, is_measured=False)
    slots = {kept.slots for _, kept in find_cached_casts(graph)}
    assert ("layers.0.feed_forward.w1.weight", "layers.0.feed_forward.w3.weight") in slots
    assert ("layers.0.attention.wq.weight", "layers.0.attention.wk.weight", "layers.0.attention.wv.weight") in slots


def test_memory_counts_kept_weights_all_the_time_and_each_once():
    peaks = []
    for config in (PassesConfig(), KEPT):
        graph, facts = capture_small("llama3", Mesh(), **BF16)
        run_passes(graph, build_passes(config), facts, is_measured=False)
        memory = find_memory(graph)
        peaks.append(memory)
    held = [each for each in peaks[1].held if is_cached_cast(each.node)]
    stored = sum(math.prod(spec.shape) for spec in graph.inputs if spec.kind is InputKind.STATE)
    assert sum(each.bytes for each in held) == 2 * stored, "two bytes for every number, forward and backward share them"
    assert {(each.first, each.last) for each in held} == {(0, len(graph.nodes) - 1)}
    assert peaks[1].live_bytes[-1] > peaks[0].live_bytes[-1]

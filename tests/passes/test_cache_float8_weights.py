"""cache_float8_weights: an update casts its weights to float8 once, and no bit changes."""

import math
import operator
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from monograph.axes import Axis
from monograph.compat.ops import ATEN
from monograph.config.leaves import replace_leaf
from monograph.graph.cast_weights import FLOAT8_CASTS, find_cached_casts, is_cached_float8
from monograph.graph.memory import find_memory
from monograph.graph.signature import InputKind
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_MATMUL
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from monograph.run import build_step
from monograph.train.update import apply_update
from tests.execute.eager_float8 import plan
from tests.execute.updates import buffers_of, digest, one_rank
from tests.kit.pipelines import capture_small, make_pass
from tests.kit.replayed_ops import ReplayedOps
from tests.parallel.rank_work import read_batches
from tests.passes.written import BACKWARD, ByHand, check_text, run

E4M3 = torch.float8_e4m3fn
ON = PassesConfig(on=("quantize_matmuls", "cache_float8_weights"))
BF16 = {"training.compute_dtype": "bfloat16", "model.dim": 64}
FLOAT8 = {"compile.mode": "graph", "compile.numerics": "float8", "parallelism.fsdp": "graph", "model.n_layers": 1}
THREE = {"training.local_batch_size": 1, "training.global_batch_size": 3, "validator.interval": 1}
SHORT, OP_BY_OP, CHANGED = 1, 2, ((3, 1), (4, 0))
"""The update of one micro-batch, the one that is not replayed, and after which micro-batches weights are changed."""


def test_casts_of_a_weight_become_one_in_all_layouts_that_are_read():
    hand = ByHand()

    def square(value, is_transposed, **given):
        whole = hand.call(FLOAT8_CAST, value, E4M3, True, is_transposed, **given)
        numbers, scales = (hand.call(operator.getitem, whole, index, **given) for index in (0, 1))
        return hand.call(FLOAT8_MATMUL, numbers, numbers, scales, scales, True, **given)

    a, b = hand.input("a", 32, 16), hand.input("b", 32, 16)
    narrow = hand.call(ATEN._to_copy.default, a, dtype=torch.bfloat16)
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.add.Tensor, square(narrow, False), square(b, False)))
    graph = hand.done(loss, a=square(narrow, True, direction=BACKWARD))
    note = run("cache_float8_weights", graph, config=ON)
    assert note == "2 weights cast to float8 once per update, 1 of them in both layouts"
    check_text(
        graph,
        """
        forward:
          0: 4 values = monograph.float8_cast_both(%a, float8_e4m3fn, True)  # once by cache_float8_weights
          1: float8_e4m3fn[32, 16] = getitem(f.0, 0)  # once by cache_float8_weights
          2: float32[32, 1] = getitem(f.0, 1)  # once by cache_float8_weights
          3: float8_e4m3fn[16, 32] = getitem(f.0, 2)  # saved once by cache_float8_weights
          4: float32[16, 1] = getitem(f.0, 3)  # saved once by cache_float8_weights
          5: bfloat16[32, 32] = monograph.float8_matmul(f.1, f.1, f.2, f.2, True)
          6: 2 values = monograph.float8_cast(%b, float8_e4m3fn, True, False)  # once
          7: float8_e4m3fn[32, 16] = getitem(f.6, 0)  # once
          8: float32[32, 1] = getitem(f.6, 1)  # once
          9: bfloat16[32, 32] = monograph.float8_matmul(f.7, f.7, f.8, f.8, True)
          10: bfloat16[32, 32] = add.Tensor(f.5, f.9)
          11: bfloat16[] = sum(f.10)
        backward:
          0: bfloat16[16, 16] = monograph.float8_matmul(f.3, f.3, f.4, f.4, True)
          return f.11, b.0
        """,
    )


def make_updates(config, *, is_replayed=False):
    """Digests of all that updates of several micro-batches leave, with evaluations in between, and the program."""
    recorded = patch("monograph.run.make_recorder", lambda *_: ReplayedOps()) if is_replayed else nullcontext()
    found = []
    with one_rank(config) as groups, recorded:
        step = build_step(config, groups)
        optimizer = config.plan_optimizer().build(parameters=step.trained, weight_cache=step.weight_cache)
        for number, batches in enumerate(read_batches(config, step, 5)):
            tensors = [batch.tensors for batch in batches[: 1 if number == SHORT else None]]
            scalars = step.compute_scalars(tensors)
            seen = {}
            with step.op_by_op() if number == OP_BY_OP else nullcontext():
                for index, each in enumerate(tensors):
                    seen[f"loss {index}"] = step.run(step.prepare(each), scalars)
                    seen[f"evaluation {index}"] = step.run_evaluation(step.prepare(each), scalars)
                    if (number, index) in CHANGED:
                        with torch.no_grad():
                            step.parameters["layers.0.feed_forward.w2.weight"].mul_(2.0)
            seen |= {f"gradient {name}": each.grad for name, each in step.trained.items()}
            found.append(digest(seen))
            apply_update(step, optimizer, loss=seen["loss 0"], lr=0.05, max_norm=1.0)
            found[-1] |= digest({**step.parameters, **buffers_of(step)})
        program = step.program
        assert is_replayed == hasattr(program, "recordings")
    return found, program


@pytest.mark.parametrize(
    ("model", "recipe", "changes"),
    [
        ("llama3", "rowwise", {}),
        pytest.param("llama3", "tensorwise", {}, marks=pytest.mark.long),
        pytest.param("llama3", "rowwise_hp_dw", {"activation_checkpoint.mode": "full"}, marks=pytest.mark.long),
        pytest.param("llama3", "rowwise", {"training.dtype": "bfloat16"}, marks=pytest.mark.long),
        pytest.param("deepseek_v3", "rowwise", {"model.n_layers": 2}, marks=pytest.mark.long),
    ],
)
def test_updates_have_the_bits_of_updates_that_cast_in_every_micro_batch(model, recipe, changes, tmp_path):
    """Also recorded, when an update in between runs op by op, and when weights are changed between micro-batches."""
    config = plan(model, tmp_path, {**FLOAT8, **THREE, "passes.quantize_matmuls.recipe": recipe, **changes})
    wanted, _ = make_updates(replace_leaf(config, "passes.off", ("cache_float8_weights",)))
    found, program = make_updates(config)
    assert found == wanted
    casts = [count_casts(program.modules[kind]) for kind in (True, False)]
    assert casts[0] - casts[1] == len([node for node in program.float8.skipped if node.target in FLOAT8_CASTS]) > 0
    found, program = make_updates(config, is_replayed=True)
    assert found == wanted
    assert {(is_first, casts) for is_first, _, casts, _ in program.recordings} == {
        (True, True),
        (False, False),
        (False, True),
    }


def count_casts(module):
    """The casts to float8 of a program."""
    return len([node for node in module.graph.nodes if node.target in FLOAT8_CASTS])


def optimize(*, is_on, **facts):
    """A captured step of several micro-batches after all passes."""
    graph, known = capture_small("llama3", Mesh(), **BF16)
    off = () if is_on else ("cache_float8_weights",)
    known = replace(known, micro_batches=2, reshard=False, is_single_pass=True, **facts)
    run_passes(graph, build_passes(PassesConfig(off=off), "float8"), known)
    return graph


def test_float8_takes_the_memory_of_the_bfloat16_copies_that_nothing_reads_any_more():
    before, after = optimize(is_on=False), optimize(is_on=True)
    blocks = [
        spec for spec in after.inputs if spec.kind is InputKind.STATE and len(spec.shape) == 2 and "layers" in spec.name
    ]
    copied = [{slot for _, cast in find_cached_casts(graph) for slot in cast.slots} for graph in (before, after)]
    assert copied[0] - copied[1] == {spec.name for spec in blocks}
    held = [each for each in find_memory(after).held if is_cached_float8(each.node)]
    assert {(each.first, each.last) for each in held} == {(0, len(after.nodes) - 1)}, "from one update to the next"
    assert sum(each.bytes for each in held if each.part in (0, 2)) == sum(2 * math.prod(spec.shape) for spec in blocks)


def test_updates_of_one_micro_batch_pipelines_and_resharded_weights_cast_as_ever():
    _, facts = capture_small("llama3", Mesh(), **BF16)
    default = make_pass("cache_float8_weights")
    several = replace(facts, micro_batches=2, reshard=False)
    assert default.skip(several) == ""
    assert "one micro-batch" in default.skip(replace(several, micro_batches=1))
    assert "reshard_after_forward" in default.skip(replace(several, reshard=True))
    staged = replace(several, degrees={Axis.PP: 2})
    assert "pipeline" in default.skip(staged) and "pipeline" in make_pass("cache_float8_weights", ON).skip(staged)
    assert make_pass("cache_float8_weights", ON).skip(replace(facts, micro_batches=1)) == "", "asked for by name"

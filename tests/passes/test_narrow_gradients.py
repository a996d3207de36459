"""narrow_gradients: a cast at the very end of a gradient is left to whoever needs it."""

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.config.configurable import check_config
from monograph.errors import ConfigError
from monograph.passes.config import PassesConfig
from monograph.run import build_step
from tests.execute.updates import normalizers_of, one_rank, read_batches, small
from tests.passes.written import BACKWARD, ByHand, check_text, run

ASKED = PassesConfig(on=("narrow_gradients",))
BF16 = {"compile.mode": "graph", "training.compute_dtype": "bfloat16", "model.n_layers": 1}
NARROW = {"passes.on": ("narrow_gradients",), "optimizer.implementation": "single_pass"}


def test_only_a_cast_that_nothing_follows_is_left_out():
    hand = ByHand()
    v, w = hand.input("v", 4), hand.input("w", 4)
    loss = hand.call(ATEN.sum.default, w)
    narrow = hand.call(ATEN._to_copy.default, v, dtype=torch.bfloat16, direction=BACKWARD)
    other = hand.call(ATEN._to_copy.default, w, dtype=torch.bfloat16, direction=BACKWARD)
    wide = hand.call(ATEN._to_copy.default, other, dtype=torch.float32, direction=BACKWARD)
    graph = hand.done(
        loss,
        v=hand.call(ATEN._to_copy.default, narrow, dtype=torch.float32, direction=BACKWARD),
        w=hand.call(ATEN.add.Tensor, wide, wide, direction=BACKWARD),
    )
    assert run("narrow_gradients", graph, config=ASKED) == "1 gradient returned in the dtype of the backward"
    check_text(
        graph,
        """
        forward:
          0: float32[] = sum(%w)
        backward:
          0: bfloat16[4] = _to_copy(%v, dtype=bfloat16)
          1: bfloat16[4] = _to_copy(%w, dtype=bfloat16)
          2: float32[4] = _to_copy(b.1, dtype=float32)
          3: float32[4] = add.Tensor(b.2, b.2)
          return f.0, b.0, b.3
        """,
    )


def gradients_of(config):
    """After one micro-batch and after three."""
    with one_rank(config) as groups:
        step = build_step(config, groups)
        found = []
        for batch in read_batches(config, step, 3):
            step(batch.tensors, normalizers_of(step, valid_tokens=7))
            found.append({name: value.grad.clone() for name, value in step.parameters.items()})
        return found


@pytest.mark.parametrize("model", ["llama3", pytest.param("qwen3_moe", marks=pytest.mark.long)])
def test_gradients_are_the_same_numbers_also_when_more_are_added(model, tmp_path):
    wide = gradients_of(small(model, tmp_path, BF16, experts="grouped"))
    narrow = gradients_of(small(model, tmp_path, {**BF16, **NARROW}, experts="grouped"))
    for wanted, found in zip(wide, narrow, strict=True):
        for name, gradient in wanted.items():
            assert torch.equal(gradient, found[name].float()), name
    first, *others = ({gradient.dtype for gradient in found.values()} for found in narrow)
    assert torch.bfloat16 in first and all(found == {torch.float32} for found in others)


def test_an_optimizer_that_cannot_read_them_is_refused(tmp_path):
    config = small("llama3", tmp_path, {**BF16, **NARROW})
    with pytest.raises(ConfigError, match="implementation single_pass"):
        check_config(config.replace(optimizer=config.optimizer.replace(implementation="fused")))

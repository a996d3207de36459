"""Fused kernels: other roundings, the same training."""

import pytest

from tests.execute.updates import make_updates, one_rank, small

ROUTINGS = [(0, 1), (1, 2), (2, 3), (0, 3)] * 5
"""Which expert a token takes is a jump, and rounding decides it where two are equally good. Here it is decided."""
EPS = 1e-5
"""Adam divides a gradient by its own size: with its usual eps, gradients that are rounding noise (of the gate, for
experts that no token chose) would become steps as large as any other, in a random direction."""
TOLERANCE = 2e-6
"""Of the loss in fp32, relative: a fifth of what is promised."""


@pytest.mark.long
def test_20_steps_in_fp32_stay_within_rounding_of_eager(tmp_path):
    losses = []
    for changes in ({}, {"compile.mode": "layer", "compile.backend": "inductor"}):
        config = small("qwen3_moe", tmp_path, {**changes, "model.moe.router.top_k": 2, "optimizer.eps": EPS})
        with one_rank(config) as groups:
            updates = make_updates(config, groups, routings=ROUTINGS)
        losses.append([update.loss for update in updates])
        graphs = [update.graphs for update in updates]
    assert graphs == [1] * len(ROUTINGS)
    assert losses[0] == pytest.approx(losses[1], rel=TOLERANCE)
    assert losses[0] != losses[1], "nothing was fused"
    assert losses[0][-1] < losses[0][0] - 0.2, "twenty steps that learn nothing would prove nothing"

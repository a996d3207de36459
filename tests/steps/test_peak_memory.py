"""The default pipeline needs no more memory than the eager step, and full recomputation much less. Measured."""

import pytest
import torch

from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from tests.execute.updates import normalizers_of
from tests.kit.peak import PeakBytes

CPU = torch.device("cpu")
TOKENS = (2, 256)


def measure_peak(recipe, mode, saved="auto"):
    """Bytes one micro-batch holds at most, beside weights and tables."""
    config = load_recipe(recipe)
    config = config.replace(
        model=config.model.replace(n_layers=3),
        training=config.training.replace(local_batch_size=TOKENS[0], seq_len=TOKENS[1]),
        parallelism=config.parallelism.replace(fsdp="graph"),
        compile=config.compile.replace(mode=mode),
        activation_checkpoint=config.activation_checkpoint.replace(mode=saved),
    )
    batch = {name: torch.zeros(TOKENS, dtype=torch.int64) for name in ("tokens", "labels", "positions", "documents")}
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        step(batch, normalizers_of(step, valid_tokens=512))  # captures
        for parameter in step.parameters.values():
            parameter.grad = None
        with PeakBytes([*step.parameters.values(), *step.model.buffers(), *batch.values()]) as watch:
            step(batch, normalizers_of(step, valid_tokens=512))
        return watch.peak


@pytest.mark.long
@pytest.mark.parametrize(
    "recipe", ["llama3_debugmodel", pytest.param("deepseek_v3_debugmodel", marks=pytest.mark.long)]
)
def test_the_default_pipeline_needs_no_more_memory_than_eager_and_full_recomputation_much_less(recipe):
    eager, default = measure_peak(recipe, "eager"), measure_peak(recipe, "graph")
    full = measure_peak(recipe, "graph", saved="full")
    assert default <= eager
    assert full < 0.6 * eager

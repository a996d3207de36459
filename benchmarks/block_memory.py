"""What a block keeps for backward: as `inspect` estimates it, and as a GPU really keeps it.

    python benchmarks/block_memory.py                    # deepseek_v3_671b at full width, few layers, one GPU
    python benchmarks/block_memory.py --tiny             # the debug model; on a CPU the estimate alone

Two models that differ by one MoE block are estimated and measured. The estimate of what the block adds to the peak
(weights, gradients, the optimizer's state and saved activations) is set against what it adds to the measured peak; the
difference is counted as one of saved activations. Exit code 1 where it is more than 5 % of them.
"""

import argparse
import math
import sys
from dataclasses import dataclass

import torch

from monograph.bench import run_modes
from monograph.config.leaves import replace_leaf
from monograph.execute.facts import make_facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import find_memory
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import build_passes
from monograph.recipes.catalog import load_recipe
from monograph.report.saved import find_saved, sum_by_block
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

MIB = 2**20
ALLOWED = 0.05
MOMENT_BYTES = 8
"""AdamW's two moments in fp32, which no graph has."""


@dataclass(frozen=True)
class Estimate:
    """Of one model: the peak of its step with the optimizer's state, and what the last block saves."""

    peak: int
    saved: int


def plan_run(n_layers: int, *, is_tiny: bool) -> TrainerConfig:
    """A dense block and `n_layers` - 1 MoE blocks with few experts."""
    config = load_recipe("deepseek_v3_debugmodel" if is_tiny else "deepseek_v3_671b")
    changes = {
        "model.n_layers": n_layers,
        "model.n_dense_layers": 1,
        "model.moe.n_experts": 16,
        "training.seq_len": 128 if is_tiny else 4096,
        "training.local_batch_size": 1,
        "training.global_batch_size": -1,
        "validator.interval": 0,
        "checkpoint.enabled": False,
        "machine": "h200",
    }
    for path, value in changes.items():
        config = replace_leaf(config, path, value)
    return config


def estimate(config: TrainerConfig) -> Estimate:
    """By the captured graph, as for the named machine."""
    with fake_groups(plan_run_mesh(config, 1), 0, torch.device("cpu")) as groups:
        source, settings = build_source(config, groups)
        facts = make_facts(source.table, groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        graph = capture_and_optimize(source, make_example(config, source), facts, passes).graph
        sizes = LikelySizes(graph.module.graph)
        saved = {each["block"]: each["bytes"] for each in sum_by_block(find_saved(graph, sizes))}
        moments = MOMENT_BYTES * sum(math.prod(slot.local_shape) for slot in source.table.slots)
        return Estimate(find_memory(graph, sizes).peak_bytes + moments, saved[config.model.n_layers - 1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    configs = [plan_run(n_layers, is_tiny=options.tiny) for n_layers in (3, 4)]
    less, more = (estimate(config) for config in configs)
    print(f"estimate: {(more.peak - less.peak) / MIB:,.1f} MiB for a MoE block, {more.saved / MIB:,.1f} of them saved")
    if not torch.cuda.is_available():
        return 0
    peaks = []
    for config in configs:
        (row,) = run_modes({config.compile.numerics: config}, steps=3, warmup=1)
        assert row.peak_gib is not None
        peaks.append(row.peak_gib * 1024)
    added = peaks[1] - peaks[0]
    error = (added - (more.peak - less.peak) / MIB) / (more.saved / MIB)
    print(f"measured: {added:,.1f} MiB for a MoE block; saved activations {100 * error:+.1f} % of the estimate")
    return 1 if abs(error) > ALLOWED else 0


if __name__ == "__main__":
    sys.exit(main())

"""gpt_oss and llama4 at reduced depth on one device: layer mode and graph mode, one after the other in one process.

    python benchmarks/families.py                      # gpt_oss_20b with 4 layers and llama4_scout with 2, on a GPU
    python benchmarks/families.py gpt_oss_20b --layers 6 --seq-len 8192
    python benchmarks/families.py gpt_oss_debugmodel llama4_debugmodel --layers 2 --seq-len 64 --steps 3   # on a CPU

On a GPU graph mode must record its step as one CUDA graph, and custom kernels are compared with their references
first. The exit code is 1 where graph mode is not ahead of layer mode (on a GPU), or a kernel is not its reference.
"""

import argparse
import sys
from collections.abc import Sequence

import torch

from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.errors import MonographError
from monograph.kernels.attention import fused_attention
from monograph.kernels.check_op import check_op
from monograph.kernels.clamped_swiglu import fused_clamped_swiglu
from monograph.kernels.expert_bias import add_expert_bias
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

LAYERS = {"gpt_oss_20b": 4, "llama4_scout": 2}
"""What fits one GPU of 140 GiB with AdamW in fp32: 4.5 and 6.5 billion parameters."""
MODES = ("layer", "exact", "fast")
KERNELS = (fused_clamped_swiglu, add_expert_bias, fused_attention)


def plan_run(recipe: str, arguments: argparse.Namespace) -> TrainerConfig:
    """The recipe, shallower, with one micro-batch a step; a shallow Llama 4 has both kinds of its layers."""
    config = load_recipe(recipe)
    changes = {
        "model.n_layers": arguments.layers or LAYERS.get(recipe, config.model.n_layers),
        "training.seq_len": arguments.seq_len,
        "training.local_batch_size": arguments.batch,
        "training.global_batch_size": -1,
        "validator.interval": 0,
        "checkpoint.enabled": False,
        "model.no_rope_interval": 2,
        "model.rope.max_seq_len": max(arguments.seq_len, 2048),
    }
    if torch.cuda.is_available():
        changes["compile.cuda_graph"] = "require"
    known = {leaf.path for leaf in find_leaves(config)}
    for path, value in changes.items():
        config = replace_leaf(config, path, value) if path in known else config
    return config


def check_kernels() -> list[str]:
    """What is wrong with kernels of these families on this device; without a GPU there is nothing to compare."""
    problems = []
    for op in KERNELS:
        try:
            skipped = check_op(op)
        except MonographError as error:
            problems.append(str(error))
        else:
            print(f"{op.name}: kernel {'not run: ' + skipped['kernel'] if 'kernel' in skipped else 'equals reference'}")
    return problems


def measure(recipe: str, arguments: argparse.Namespace) -> list[BenchRow]:
    """A row for every mode; layer mode has no CUDA graph to require."""
    config = plan_run(recipe, arguments)
    modes = plan_modes(config, MODES)
    return run_modes(modes, steps=arguments.steps, warmup=arguments.warmup)


def show(recipe: str, rows: Sequence[BenchRow]) -> None:
    """The table of one recipe."""
    names = ("tokens/s", 12), ("x layer", 9), ("ms", 10), ("MFU", 8), ("peak GiB", 10), ("recorded", 10), ("loss", 10)
    print("", recipe, "mode    " + "".join(name.rjust(width) for name, width in names), sep="\n")
    for row in rows:
        mfu = "-" if row.mfu is None else f"{100 * row.mfu:.1f} %"
        peak = "-" if row.peak_gib is None else f"{row.peak_gib:.1f}"
        ratio = row.tokens_per_second / rows[0].tokens_per_second
        print(
            f"{row.mode:8}{row.tokens_per_second:12,.0f}{ratio:9.3f}{row.ms:10.1f}{mfu:>8}{peak:>10}"
            f"{'yes' if row.is_recorded else 'no':>10}{row.loss:10.4f}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(LAYERS))
    parser.add_argument("--layers", type=int, default=0, help="0: as many as fit a GPU of 140 GiB")
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    arguments = parser.parse_args()
    problems = check_kernels()
    for recipe in arguments.recipes:
        rows = measure(recipe, arguments)
        show(recipe, rows)
        by_mode = {row.mode: row for row in rows}
        if torch.cuda.is_available():
            if not by_mode["exact"].is_recorded:
                problems.append(f"{recipe}: graph mode did not record a CUDA graph")
            if by_mode["exact"].ms >= by_mode["layer"].ms:
                problems.append(f"{recipe}: graph mode is not ahead of layer mode")
    print("\n".join(["", *problems]) if problems else "\nas promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

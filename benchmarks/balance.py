"""How even the experts' load stays: MoE recipes at reduced depth on the built-in corpus, with and without balancing.

    python benchmarks/balance.py [--recipes ...] [--layers 4] [--steps 300] [--device cuda] [--out FILE]

Every recipe trains several times from the same weights on the same data: without anything that balances (no auxiliary
loss, no selection bias), as published, and with other settings (`--variants coefficient=0.01,bias`). The table has the
load of the busiest expert over the mean and the entropy over its maximum, both of the worst layer, at chosen steps; the
mean loss of the last 20 steps; and the first step from which one expert of some layer gets at least 0.9 of all tokens.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.recipes.catalog import load_recipe
from monograph.run import train
from monograph.train.config import TrainerConfig

RECIPES = ("deepseek_v3_debugmodel", "qwen3_debugmodel_moe")
SHOWN = (1, 16, 50, 100, 200, 300)


def make_config(recipe: str, options: argparse.Namespace, folder: Path) -> TrainerConfig:
    """The recipe at reduced depth, with a constant learning rate."""
    config = load_recipe(recipe)
    changes: dict[str, Any] = {
        "job.dump_folder": str(folder),
        "training.steps": options.steps,
        "training.seq_len": options.seq_len,
        "training.local_batch_size": options.batch,
        "training.global_batch_size": -1,
        "optimizer.lr": options.lr,
        "lr_scheduler.warmup_steps": 10,
        "lr_scheduler.decay": "constant",
        "validator.interval": 0,
        "checkpoint.enabled": False,
        "metrics.progress": "off",
        "debug.device": options.device,
        "debug.log_level": "warning",
    }
    if options.layers:
        changes["model.n_layers"] = options.layers
    for path, value in changes.items():
        config = replace_leaf(config, path, value)
    return config


def make_variant(config: TrainerConfig, words: str) -> TrainerConfig:
    """The same run with other balancing: `nothing`, `published`, or settings beside the published ones.

    `bias` adds the selection bias; `NAME=VALUE` sets a field of the balance section, or `warmup` (steps).
    """
    balance, has_bias = config.model.moe.balance, config.model.moe.router.expert_bias
    warmup = config.lr_scheduler.warmup_steps
    for word in words.split(","):
        name, _, value = word.partition("=")
        if word == "nothing":
            balance, has_bias = LoadBalanceConfig(), False
        elif word == "bias":
            has_bias = True
        elif name == "scope":
            balance = balance.replace(scope=value)
        elif name == "warmup":
            warmup = int(value)
        elif word != "published":
            balance = balance.replace(**{name: float(value)})
    changed = replace_leaf(config, "model.moe.balance", balance)
    changed = replace_leaf(changed, "model.moe.router.expert_bias", has_bias)
    changed = replace_leaf(changed, "lr_scheduler.warmup_steps", warmup)
    check_config(changed)
    return changed


def run(config: TrainerConfig) -> list[dict[str, Any]]:
    """The records of a run."""
    train(config)
    path = Path(config.job.dump_folder) / "metrics.jsonl"
    return [record for line in path.read_text().splitlines() if "loss" in (record := json.loads(line))]


def summarize(records: Sequence[dict[str, Any]], config: TrainerConfig) -> dict[str, Any]:
    """The numbers of one row."""
    moe = config.model.moe
    worst = moe.n_experts / moe.router.top_k
    ratios = {record["step"]: max(record["expert_load"]["max_over_mean"]) for record in records}
    last = records[-1]["expert_load"]
    tail = [record["loss"] for record in records[-20:]]
    return {
        "ratios": {step: ratios[step] for step in SHOWN if step in ratios},
        "all_layers": last,
        "ratio": max(last["max_over_mean"]),
        "entropy": min(last["entropy"]),
        "loss": sum(tail) / len(tail),
        "collapsed_at": next((step for step, ratio in ratios.items() if ratio >= 0.9 * worst), None),
        "curve": {"ratio": list(ratios.values()), "loss": [record["loss"] for record in records]},
        "aux_loss": records[-1].get("aux_loss"),
    }


def show(recipe: str, variant: str, row: dict[str, Any]) -> str:
    """A row of the table."""
    ratios = " / ".join(f"{ratio:.2f}" for ratio in row["ratios"].values())
    met = "yes" if row["ratio"] <= 2.5 and row["entropy"] >= 0.95 else "no"
    collapsed = row["collapsed_at"] or "-"
    return f"| {recipe} | {variant} | {ratios} | {row['entropy']:.3f} | {row['loss']:.4f} | {collapsed} | {met} |"


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--layers", type=int, default=0, help="0: as many as the recipe has")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--variants", nargs="+", default=["nothing", "published"], help="see make_variant")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    found: dict[str, dict[str, Any]] = {}
    print(f"| recipe | balanced by | max/mean at {SHOWN} | entropy | loss | collapsed at | even |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for recipe in options.recipes:
            config = make_config(recipe, options, Path(folder) / recipe)
            for name in options.variants:
                variant = make_variant(config, name)
                index = str(Path(folder) / f"{recipe}-{name}")
                row = summarize(run(replace_leaf(variant, "job.dump_folder", index)), variant)
                found.setdefault(recipe, {})[name] = row
                print(show(recipe, name, row), flush=True)
                if options.out is not None:
                    options.out.write_text(json.dumps(found, allow_nan=False), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Packed documents and windows in a whole training step, against plain causal attention in the same process.

    python benchmarks/attention_speed.py --out attention_speed.json      # one GPU
    python benchmarks/attention_speed.py --tiny                          # every row, small, also on a CPU

llama3_bench_1b with `--compile.numerics fast`: 4 x 4096 tokens with documents of 1024, and 1 x 32768 with documents of
2048 and with a window of 128 in every layer. Then what deterministic attention costs `exact`. Exit code 1 where a ratio
is below its target, or a step needs more memory than causal attention and the workspace that is stated.
"""

import argparse
import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import torch

from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.models.attention_kind import AttentionKind
from monograph.models.llama3.model import Llama3
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

WORKSPACE_GIB = 1.0
"""What attention over documents or windows may need above causal attention: fp32 sums of its backward."""


@dataclass(frozen=True)
class Case:
    """A run, and how many times as fast as the causal one of its length it must be."""

    name: str
    seq_len: int
    batch: int
    document_tokens: int = 0
    window: int = 0
    least: float = 0.0


CASES = (
    Case("causal", 4096, 4),
    Case("documents of 1024", 4096, 4, document_tokens=1024, least=1.05),
    Case("causal", 32768, 1),
    Case("documents of 2048", 32768, 1, document_tokens=2048, least=1.5),
    Case("window of 128", 32768, 1, window=128, least=1.4),
)


class WindowedLlama3(Llama3):
    """Llama 3 with the same window in every layer."""

    window = 128

    def find_attention_kind(self, layer: int) -> AttentionKind:
        return AttentionKind("window", window=self.window)


@dataclass(kw_only=True, slots=True)
class WindowedConfig(Llama3.Config):
    """Its configuration."""

    owner: ClassVar[str] = f"{__name__}:WindowedLlama3"


def plan_case(case: Case, *, is_tiny: bool) -> TrainerConfig:
    """The recipe with the lengths and the mask of a case."""
    config = load_recipe("llama3_debugmodel" if is_tiny else "llama3_bench_1b")
    length = case.seq_len // 64 if is_tiny else case.seq_len
    training = config.training.replace(seq_len=length, local_batch_size=case.batch, global_batch_size=-1)
    model = config.model.replace(mask="document" if case.document_tokens else "causal")
    if case.window:
        WindowedLlama3.window = case.window // 64 if is_tiny else case.window
        model = WindowedConfig(**{field.name: getattr(model, field.name) for field in fields(model)})
    return config.replace(training=training, model=model, validator=config.validator.replace(interval=0))


def measure(case: Case, mode: str, *, is_tiny: bool, steps: int) -> BenchRow:
    """One case in one mode."""
    config = plan_case(case, is_tiny=is_tiny)
    documents = case.document_tokens // 64 if is_tiny else case.document_tokens
    (row,) = run_modes(plan_modes(config, [mode]), steps=steps, warmup=3, document_tokens=documents)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args()
    found, problems = [], []
    heads = ("tokens", "attention", "mode", "tokens/s", "of causal", "ms", "peak GiB", "CUDA graph")
    causal: dict[tuple[int, str], BenchRow] = {}
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for mode, cases in (("fast", CASES), ("exact", CASES[:2])):
        for case in cases:
            row = measure(case, mode, is_tiny=options.tiny, steps=options.steps)
            first = causal.setdefault((case.seq_len, mode), row)
            ratio = row.tokens_per_second / first.tokens_per_second
            peak = "-" if row.peak_gib is None else f"{row.peak_gib:.2f}"
            print(
                f"| {case.batch} x {case.seq_len} | {case.name} | {mode} | {row.tokens_per_second:,.0f} | {ratio:.3f} "
                f"| {row.ms:.1f} | {peak} | {'yes' if row.is_recorded else 'no'} |",
                flush=True,
            )
            found.append({"case": asdict(case), "of_causal": ratio, **asdict(row)})
            if torch.cuda.is_available() and mode == "fast" and not options.tiny:
                if ratio < case.least:
                    problems.append(f"{case.seq_len} tokens, {case.name}: {ratio:.3f} of causal, wanted {case.least}")
                if (row.peak_gib or 0.0) > (first.peak_gib or 0.0) + WORKSPACE_GIB:
                    problems.append(f"{case.seq_len} tokens, {case.name}: more memory than causal and its workspace")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1, default=str))
    print("\n".join(["", *problems]) if problems else "\nas promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

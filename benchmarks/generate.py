"""How much a cache of keys and values saves: tokens per second with it and without, after one long prompt.

    python -m benchmarks.generate [--recipes llama3_debugmodel ...] [--prompt 1000] [--tokens 64] [--device cpu]

Both write the same greedy tokens, which is checked. The time of the cached run includes reading the prompt.
"""

import argparse
import time

import torch

from monograph.execute.device import find_device
from monograph.generate.loop import generate
from monograph.models.init import initialize, materialize
from monograph.recipes.catalog import load_recipe

RECIPES = (
    "llama3_debugmodel",
    "qwen2_5_debugmodel",
    "qwen3_debugmodel",
    "qwen3_debugmodel_moe",
    "deepseek_v3_debugmodel",
)


def build(recipe: str, device: torch.device, dtype: torch.dtype) -> torch.nn.Module:
    """The recipe's model with its first weights."""
    with torch.device("meta"):
        model = load_recipe(recipe).model.build()
    materialize(model, device=device, dtype=dtype)
    initialize(model, seed=1)
    return model.eval().requires_grad_(False)


def measure(recipe: str, prompt: int, tokens: int, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Tokens per second with a cache, and without."""
    model = build(recipe, device, dtype)
    text = torch.randint(0, 256, (prompt,), generator=torch.Generator().manual_seed(0)).tolist()
    generate(model, [text], device=device, max_new_tokens=2)
    seconds, written = [], []
    for use_cache in (True, False):
        start = time.perf_counter()
        (row,) = generate(model, [text], device=device, max_new_tokens=tokens, use_cache=use_cache)
        seconds.append(time.perf_counter() - start)
        written.append(row.tokens)
    if dtype == torch.float32 and written[0] != written[1]:
        raise AssertionError(f"{recipe}: other tokens with a cache")
    return tokens / seconds[0], tokens / seconds[1]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    device = find_device(given.device)
    print(f"torch {torch.__version__}, {device}, {given.dtype}, prompt of {given.prompt}, {given.tokens} new tokens")
    print("| recipe | tokens/s with a cache | without | ratio |\n|---|---|---|---|")
    for recipe in given.recipes:
        fast, slow = measure(recipe, given.prompt, given.tokens, device, getattr(torch, given.dtype))
        print(f"| {recipe} | {fast:.1f} | {slow:.2f} | {fast / slow:.1f} |", flush=True)


if __name__ == "__main__":
    main()

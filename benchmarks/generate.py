"""How much a cache of keys and values saves: tokens per second with it and without, after one long prompt.

    OMP_NUM_THREADS=1 python -m benchmarks.generate [--recipes llama3_debugmodel ...] [--prompt 1000] [--tokens 100]

The debug models are made wider (`--dim 1024`), so that what is measured is arithmetic and not calls of ops. Both write
the same greedy tokens, which is checked (in fp32). The time with a cache includes reading the prompt. On a CPU, time is
that of the process, which other processes disturb little; on a GPU it is the clock's.
"""

import argparse
import time

import torch

from monograph.execute.device import use_device
from monograph.generate.loop import generate
from monograph.models.init import initialize, materialize
from monograph.models.model import Model
from monograph.recipes.catalog import load_recipe

RECIPES = (
    "llama3_debugmodel",
    "qwen2_5_debugmodel",
    "qwen3_debugmodel",
    "qwen3_debugmodel_moe",
    "deepseek_v3_debugmodel",
)


def build(recipe: str, dim: int, device: torch.device, dtype: torch.dtype) -> Model:
    """The recipe's model, of another width where asked, with its first weights."""
    config = load_recipe(recipe).model
    config = config.replace(dim=dim) if dim else config
    with torch.device("meta"):
        model: Model = config.build()
    materialize(model, device=device, dtype=dtype)
    initialize(model, seed=1)
    return model.eval().requires_grad_(False)


def measure(model: Model, prompt: int, tokens: int, device: torch.device) -> tuple[float, float]:
    """Tokens per second with a cache, and without."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    text = torch.randint(0, 256, (prompt,), generator=torch.Generator().manual_seed(0)).tolist()
    generate(model, [text], device=device, max_new_tokens=2)
    seconds, written = [], []
    for use_cache in (True, False):
        start = clock()
        (row,) = generate(model, [text], device=device, max_new_tokens=tokens, use_cache=use_cache)
        seconds.append(clock() - start)
        written.append(row.tokens)
    is_wide = next(model.parameters()).dtype == torch.float32
    if is_wide and written[0] != written[1]:
        raise AssertionError("other tokens with a cache")
    return tokens / seconds[0], tokens / seconds[1]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--dim", type=int, default=1024, help="width of the models; 0 leaves them as they are")
    parser.add_argument("--prompt", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    given = parser.parse_args()
    device = use_device(given.device)
    print(f"torch {torch.__version__}, {device}, {given.dtype}, dim {given.dim}")
    print(f"a prompt of {given.prompt} tokens, then {given.tokens} new ones")
    print("| recipe | tokens/s with a cache | without | ratio |\n|---|---|---|---|")
    for recipe in given.recipes:
        model = build(recipe, given.dim, device, getattr(torch, given.dtype))
        fast, slow = measure(model, given.prompt, given.tokens, device)
        print(f"| {recipe} | {fast:.1f} | {slow:.2f} | {fast / slow:.1f} |", flush=True)


if __name__ == "__main__":
    main()

"""Mistral, Gemma 2 and Gemma 3 on one device: transformers' numbers, equal bits, verify, and the time of a step.

    python benchmarks/families_gpu.py                                      # on a GPU, with transformers installed
    python benchmarks/families_gpu.py --debug-models --seq-len 64 --steps 3 --skip-verify    # tried on a CPU

For every family: logits, loss and gradients of a small odd model in fp32 (within 1e-4 of the largest of each tensor)
and in bf16 (no further from fp32 than twice what transformers' bf16 is); the losses of steps in eager, layer, exact and
fast mode, of which eager and exact must have equal bits (layer runs what torch.compile makes of blocks); `monograph
verify` on two ranks; tokens per second. The exit code is 1 where one fails.
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.config.leaves import replace_leaf
from monograph.models.hf_families import find_family
from monograph.models.hf_tensors import export_tensors, import_tensors
from monograph.models.init import reset
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

WINDOW, FULL = "sliding_attention", "full_attention"
SIZES = {
    **{"vocab_size": 1031, "hidden_size": 192, "intermediate_size": 272, "num_hidden_layers": 3},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 48, "sliding_window": 37},
    **{"max_position_embeddings": 512, "pad_token_id": None},
}
GEMMA = {"query_pre_attn_scalar": 40, "layer_types": [WINDOW, FULL, WINDOW], "final_logit_softcapping": 20.0}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {}),
    "gemma2": ("Gemma2", {**GEMMA, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3Text", GEMMA),
}
"""Family -> the stem of transformers' class names, and settings besides SIZES."""
RECIPES = {"mistral": ("mistral_7b", 4), "gemma2": ("gemma2_2b", 8), "gemma3": ("gemma3_1b", 26)}
"""Family -> the recipe that is measured, and its layers: what fits one GPU of 140 GiB with AdamW in fp32."""
MODES = ("eager", "layer", "exact", "fast")
FP32_LIMIT = 1e-4
LENGTH = 150


def make_theirs(family: str, device: torch.device) -> Any:
    """A random model of transformers in fp32, with weights large enough that a wrong formula shows."""
    name, more = CLASSES[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SIZES, **more, attn_implementation="eager")
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return model.to(device)


def make_ours(theirs: Any, device: torch.device) -> tuple[nn.Module, Any, Any]:
    """Our model of the same weights, its map and its config."""
    hf = theirs.config.to_dict()
    family = find_family(hf["model_type"])
    config = family.from_hf_config({key: value for key, value in hf.items() if key != "_sliding_window_pattern"})
    ours = config.build()
    reset(ours)
    state = {name: each.detach().cpu() for name, each in theirs.state_dict().items()}
    ours.load_state_dict(import_tensors(family.entries(config), state), strict=False)
    return ours.to(device), family, config


def compute_theirs(model: Any, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Loss, logits and gradients by transformers' names."""
    model.zero_grad()
    output = model(tokens, labels=labels, shift_labels=labels)
    output.loss.backward()
    gradients = {name: each.grad.float() for name, each in model.named_parameters()}
    return {"loss": output.loss.detach().float(), "logits": output.logits.detach().float(), **gradients}


def compute_ours(model: Any, family: Any, config: Any, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The same by our model."""
    model.zero_grad()
    with torch.no_grad():
        logits = model.predict(tokens).float()
    objective = model(tokens, labels).objective
    objective.backward()
    gradients = {name: each.grad.float() for name, each in model.named_parameters() if each.grad is not None}
    exported = export_tensors(family.entries(config), gradients)
    return {"loss": objective.detach().float(), "logits": logits, **exported}


def find_error(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> tuple[float, str]:
    """The largest difference from the expected values, relative to the largest of each tensor, and its name."""
    errors = {
        name: ((found[name] - each).abs().max() / each.abs().max().clamp(min=1e-6)).item()
        for name, each in expected.items()
    }
    name = max(errors, key=lambda each: errors[each])
    return errors[name], name


def compare_with_transformers(family: str, device: torch.device) -> tuple[str, list[str]]:
    """A line for the table, and what is wrong."""
    theirs = make_theirs(family, device)
    ours, names, config = make_ours(theirs, device)
    generator = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(0, SIZES["vocab_size"], (2, 2, LENGTH), generator=generator).to(device)
    exact = compute_theirs(theirs, tokens, labels)
    fp32, where = find_error(compute_ours(ours, names, config, tokens, labels), exact)
    narrow = {"theirs": compute_theirs(theirs.bfloat16(), tokens, labels)}
    narrow["ours"] = compute_ours(ours.bfloat16(), names, config, tokens, labels)
    bf16 = {whose: find_error(found, exact) for whose, found in narrow.items()}
    problems = [f"{family}: {where} differs by {fp32:.1e} in fp32"] * (fp32 > FP32_LIMIT)
    if bf16["ours"][0] > 2 * bf16["theirs"][0]:
        problems.append(
            f"{family}: {bf16['ours'][1]} is {bf16['ours'][0]:.1e} off in bf16, theirs {bf16['theirs'][0]:.1e}"
        )
    return f"fp32 {fp32:.1e}   bf16 {bf16['ours'][0]:.1e} (transformers {bf16['theirs'][0]:.1e})", problems


def plan_run(family: str, arguments: argparse.Namespace) -> TrainerConfig:
    """The recipe, shallower, with one micro-batch a step."""
    recipe, layers = (f"{family}_debugmodel", 6) if arguments.debug_models else RECIPES[family]
    config = load_recipe(recipe)
    changes = {
        "model.n_layers": layers,
        "training.seq_len": arguments.seq_len,
        "training.local_batch_size": arguments.batch,
        "training.global_batch_size": -1,
        "validator.interval": 0,
        "checkpoint.enabled": False,
        "compile.cuda_graph": "require" if torch.cuda.is_available() else "auto",
    }
    for path, value in changes.items():
        config = replace_leaf(config, path, value)
    return config


def check_rows(family: str, rows: list[BenchRow]) -> list[str]:
    """What is wrong with the bits of measured modes: each step starts from the update before it."""
    by_mode = {row.mode: row for row in rows}
    problems = []
    if {"eager", "exact"} <= by_mode.keys() and by_mode["exact"].losses != by_mode["eager"].losses:
        problems.append(f"{family}: the losses of exact are not those of eager bit for bit")
    if torch.cuda.is_available() and "exact" in by_mode and not by_mode["exact"].is_recorded:
        problems.append(f"{family}: graph mode did not record a CUDA graph")
    return problems


def verify(family: str) -> list[str]:
    """`monograph verify` of the debug recipe on two ranks, which share the GPU."""
    words = ["--training.seq_len", "128", "--model.n_layers", "2", "--ranks", "2", "--debug.share_gpus", "true"]
    command = [sys.executable, "-m", "monograph", "verify", f"{family}_debugmodel", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return [f"{family}: verify failed: {(done.stdout + done.stderr)[-400:]}"] * (done.returncode != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(CLASSES))
    parser.add_argument("--debug-models", action="store_true", help="measure the small recipes")
    parser.add_argument("--skip-verify", action="store_true")
    parser.add_argument(
        "--modes", nargs="*", default=list(MODES), help="eager is the one that others are compared with"
    )
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=3)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problems, lines = [], []
    for family in arguments.families:
        line, found = compare_with_transformers(family, device)
        problems += found
        lines.append(f"{family:8} {line}")
        print(lines[-1], flush=True)
        rows = run_modes(
            plan_modes(plan_run(family, arguments), arguments.modes), steps=arguments.steps, warmup=arguments.warmup
        )
        problems += check_rows(family, rows) + ([] if arguments.skip_verify else verify(family))
        for row in rows:
            mfu = "-" if row.mfu is None else f"{100 * row.mfu:.1f} %"
            lines.append(
                f"    {row.mode:8}{row.ms:10.1f} ms{row.tokens_per_second:12,.0f} tokens/s{mfu:>8}  {row.loss:.4f}"
            )
    print("\n".join(lines))
    print("\n".join(["", *problems]) if problems else "\nas promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

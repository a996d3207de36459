"""Random config.json files: our logits are those of transformers, or the file is refused by the key's name.

`make test-fuzz`, or `python -m tests.models.hf_fuzz --seed 17` for one seed. What is accepted is also exported, and
transformers must compute the same logits from the config.json that we write.
"""

import argparse
import collections
import copy
import dataclasses
import json
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_tensors import import_tensors
from monograph.models.init import reset
from monograph.models.load_balance_config import LoadBalanceConfig
from tests.models.hf_draw import Drawn, draw
from tests.models.hf_export_fuzz import draw_ours, export, fill

TOLERANCE = 1e-5
MATCHED, ROUNDING, REFUSED = "matched", "matched within rounding", "refused"
ONLY_OURS = "transformers cannot run it"
OUTCOMES = (MATCHED, ROUNDING, REFUSED, ONLY_OURS)


class Mismatch(Exception):
    """Something that a seed shows to be wrong."""


def check_import(seed: int) -> tuple[str, str]:
    """The family of a seed's config.json and what became of it; raises Mismatch, or whatever escapes the reading."""
    drawn = draw(seed)
    return drawn.hf["model_type"], check_config_json(drawn)


def check_export(seed: int) -> tuple[str, str]:
    """The kind of a seed's model of ours and what became of its export; raises Mismatch when transformers differs."""
    config, changed = draw_ours(seed)
    kind = type(config).__name__
    try:
        found, theirs = export(config, make_tokens(config))
    except ConfigError as error:
        if not any(path.rpartition(".")[2] in str(error) for path in changed):
            raise Mismatch(f"the export of {list(changed)} is refused without naming one: {error}") from None
        return kind, REFUSED
    return kind, judge(found, theirs, config)


def check_config_json(drawn: Drawn) -> str:
    """Read one config.json with both, and compare."""
    text = json.dumps(drawn.hf)
    try:
        config = find_family(drawn.hf["model_type"]).from_hf_config(json.loads(text))
    except ConfigError as error:
        if not any(key in str(error) for key in drawn.changed):
            raise Mismatch(f"refused without naming {list(drawn.changed)}: {error}") from None
        return REFUSED
    with tempfile.TemporaryDirectory(prefix="hf-fuzz-") as folder:
        (Path(folder) / "config.json").write_text(text)
        try:
            theirs = build_theirs(folder)
            expected = compute_theirs(theirs, config)
        except Exception:
            compute_ours(config, None)
            return ONLY_OURS
        theirs.generation_config = transformers.GenerationConfig()  # an odd pad_token_id would not be saved
        theirs.save_pretrained(folder)
        saved = json.loads((Path(folder) / "config.json").read_text())
        if without_balance(find_family(saved["model_type"]).from_hf_config(saved)) != without_balance(config):
            raise Mismatch("the config.json that transformers writes back is read differently")
        tensors = load_file(Path(folder) / "model.safetensors")
    if (gap := find_gap(compute_export(config, theirs), expected)) > 0:
        raise Mismatch(f"what we write gives other logits in transformers, by {gap:.1e}")
    return judge(compute_ours(config, tensors), theirs, config)


def judge(found: torch.Tensor, theirs: Any, config: DecoderConfig) -> str:
    """MATCHED or ROUNDING; raises Mismatch when our logits differ by more than rounding explains."""
    expected = compute_theirs(theirs, config)
    gap = find_gap(found, expected)
    if gap <= TOLERANCE:
        return MATCHED
    noise = measure_noise(theirs, config, expected)
    if not gap <= 2 * noise:
        raise Mismatch(f"our logits differ by {gap:.1e}, where rounding explains {noise:.1e}")
    return ROUNDING


def find_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, relative for logits above 1; where theirs are not finite, ours must not be either."""
    gap = (found - expected).abs() / expected.abs().clamp(min=1.0)
    gap[~expected.isfinite() & ~found.isfinite()] = 0
    return gap.nan_to_num(nan=torch.inf).max().item()


def measure_noise(theirs: Any, config: DecoderConfig, expected: torch.Tensor) -> float:
    """How far their own logits move when every weight is off by its last bit: some models are that ill-conditioned."""
    found = []
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        moved = copy.deepcopy(theirs)
        with torch.no_grad():
            for parameter in moved.parameters():
                parameter.mul_(1 + 2.0**-23 * torch.randint(-1, 2, parameter.shape, generator=generator))
        found.append(find_gap(compute_theirs(moved, config), expected))
    return max(found)


def build_theirs(folder: str) -> Any:
    """transformers' model with random weights, large enough that a wrong formula shows."""
    model = make_theirs(transformers.AutoConfig.from_pretrained(folder))
    fill(model.state_dict())
    return model


def make_theirs(config: Any) -> Any:
    """transformers' model, in the implementations that take every size."""
    config._experts_implementation = "eager"
    kind = transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()


def make_tokens(config: DecoderConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, config.vocab_size, (2, min(24, config.rope.max_seq_len)), generator=generator)


def compute_theirs(model: Any, config: DecoderConfig) -> torch.Tensor:
    with torch.no_grad():
        return model(make_tokens(config), return_dict=True).logits


def compute_ours(config: DecoderConfig, tensors: dict[str, torch.Tensor] | None) -> torch.Tensor:
    """Our logits, with their weights if there are any."""
    model = config.build().eval()
    reset(model)
    if tensors is not None:
        state = import_tensors(find_family_of(config).entries(config), tensors)
        model.load_state_dict(state, strict=not config.tied_embeddings)
    with torch.no_grad():
        return model.predict(make_tokens(config))


def without_balance(config: DecoderConfig) -> DecoderConfig:
    """The config without auxiliary losses: transformers writes a default where a config.json is silent."""
    moe = getattr(config, "moe", None)
    return (
        config
        if moe is None
        else dataclasses.replace(config, moe=dataclasses.replace(moe, balance=LoadBalanceConfig()))
    )


def compute_export(config: DecoderConfig, original: Any) -> torch.Tensor:
    """The logits of transformers' model of the config.json that we write, with the original's weights."""
    written = json.loads(json.dumps(find_family_of(config).to_hf_config(config)))
    model_type = written.pop("model_type")
    again = find_family(model_type).from_hf_config({"model_type": model_type, **written})
    if without_balance(again) != without_balance(config):
        raise Mismatch("the config.json that we write is read differently")
    model = make_theirs(transformers.AutoConfig.for_model(model_type, **written))
    model.load_state_dict(original.state_dict())
    return compute_theirs(model, config)


def run(name: str, check: Callable[[int], tuple[str, str]], first: int, count: int, *, go_on: bool) -> int:
    """Check seeds in a row and print what became of them, by family; returns how many failed."""
    counts: dict[str, collections.Counter[str]] = {}
    start, failed = time.monotonic(), 0
    for seed in range(first, first + count):
        try:
            family, outcome = check(seed)
        except Exception as error:
            failed += 1
            print(f"{name} of seed {seed} failed: {type(error).__name__}: {error}\n{describe(name, seed)}", flush=True)
            if not go_on:
                command = f"repeat: python -m tests.models.hf_fuzz --{name} --seed {seed}"
                raise SystemExit(f"{traceback.format_exc()}{command}") from None
            continue
        counts.setdefault(family, collections.Counter())[outcome] += 1
    for family, found in sorted(counts.items()):
        print(f"  {family:12}", ", ".join(f"{found[outcome]} {outcome}" for outcome in OUTCOMES if found[outcome]))
    print(f"{name}: {count} configs in {time.monotonic() - start:.0f} s, seeds {first} to {first + count - 1}", end="")
    print(f", {failed} failed", flush=True)
    return failed


def describe(name: str, seed: int) -> str:
    """What a seed stands for, for the report of a failure."""
    if name == "export":
        return f"  {draw_ours(seed)}"
    drawn = draw(seed)
    return f"  changed {drawn.changed}\n  {drawn.hf}"


def main() -> None:
    """Both directions; ends with exit code 1 and the seed after the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many config.json files; a quarter as many exports")
    parser.add_argument("--first", type=int, default=int(time.time()) % 1_000_000, help="the seed to begin with")
    parser.add_argument("--seed", type=int, help="check this seed only")
    parser.add_argument("--import", dest="imports", action="store_true", help="read config.json files only")
    parser.add_argument("--export", dest="exports", action="store_true", help="export models of ours only")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a failure")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    both = options.imports == options.exports
    first, count = (options.first, options.count) if options.seed is None else (options.seed, 1)
    failed = 0
    if options.imports or both:
        failed += run("import", check_import, first, count, go_on=options.go_on)
    if options.exports or both:
        failed += run("export", check_export, first, max(1, count // 4), go_on=options.go_on)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()

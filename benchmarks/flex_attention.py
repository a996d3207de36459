"""FlexAttention on one device: distance from naive fp32 attention, time against our op, compilations, CUDA graphs.

    python benchmarks/flex_attention.py --out flex.json
    python benchmarks/flex_attention.py --only steps      # llama3_bench_1b, exact and fast: about a minute
    python benchmarks/flex_attention.py --only bits       # a debug model: seconds
    python benchmarks/flex_attention.py --tiny            # every part, small, also on a CPU

Three parts. `ops`: forward and backward of every kind in bf16 against a naive form in fp32, with the time of both
FlexAttention and our attention op where it has the same kind. `steps`: tokens per second of steps with either, what was
compiled, and whether the step was recorded as one CUDA graph. `bits`: losses of captured steps against steps op by op.
All runs in one process; every shape and part compiles its kinds anew.
Exit code 1 when an output is further away than bf16 explains, a kind was compiled twice, or bits differ.
"""

import argparse
import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.config.configurable import check_config
from monograph.kernels.attention import attention
from monograph.log import get_log, set_up_log
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.flex_attention import FlexCore, FlexInputs, build_flex_inputs
from monograph.models.flex_mods import FlexSpec, load_flex
from monograph.models.score_mods import SOFT_CAP, add_alibi, cap_softly
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig
from monograph.train.unused_settings import reset_unused

TOLERANCE = 2e-2
"""Largest distance from the naive form, as a part of its largest value, in bf16."""


@dataclass(frozen=True)
class Shape:
    """Sizes of q, k and v."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    channels: int
    value_channels: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.batch} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.channels}"


@dataclass(frozen=True)
class Row:
    """One kind of attention."""

    name: str
    kind: AttentionKind = CAUSAL
    document: int = 0
    """Tokens of a document; 0 for one text."""
    score_mod: Callable[..., Any] | None = None


SHAPES = (Shape(4, 4096, 32, 8, 64, 64), Shape(1, 32768, 32, 8, 128, 128), Shape(4, 4096, 16, 16, 192, 128))
TINY = (Shape(2, 300, 4, 2, 16, 16), Shape(1, 256, 2, 2, 32, 16))


def list_rows(shape: Shape) -> list[Row]:
    """What is measured for a shape."""
    size = shape.length // 4
    return [
        Row("causal"),
        Row("window of 128", AttentionKind("window", window=min(128, size))),
        Row(f"documents of {size}", document=size),
        Row("alibi", score_mod=add_alibi),
        Row("soft cap", score_mod=cap_softly),
    ]


def measure_op(shape: Shape, row: Row, device: torch.device, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """Error, milliseconds and compilations of a kind; milliseconds of our op where it has the kind."""
    sizes = ((shape.heads, shape.channels), (shape.kv_heads, shape.channels), (shape.kv_heads, shape.value_channels))
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn((shape.batch, shape.length, *size), device=device, dtype=dtype, generator=generator)
        for size in sizes
    )
    for each in (q, k, v):
        each.requires_grad_()
    documents = None
    if row.document:
        documents = (torch.arange(shape.length) // row.document).expand(shape.batch, shape.length).contiguous()
    spec = FlexSpec(row.kind, shape.heads, None, row.score_mod, documents is not None)
    core = FlexCore(spec, scale=shape.channels**-0.5)
    inputs = make_inputs(spec, shape, documents, device)
    grad = torch.randn(core(q, k, v, inputs).shape, device=device, dtype=dtype, generator=generator)

    def run_flex() -> Tensor:
        out: Tensor = core(q, k, v, inputs)
        out.backward(grad)
        return out

    out = run_flex()
    error = find_error(shape, row, (q, k, v), documents, out, grad)
    found: dict[str, Any] = {"shape": shape.name, "row": row.name, "error": error}
    found["flex_ms"] = time_calls(run_flex, device, seconds)
    found["tables_ms"] = time_calls(lambda: make_inputs(spec, shape, documents, device), device, seconds / 4)
    op = core.ops[documents is not None]
    found["compilations"] = [len(op.compiled.codes), len(op.compiled_backward.codes)]
    if row.score_mod is None:
        table = build_segments(documents, row.kind, WHOLE, batch=shape.batch, length=shape.length)
        table = None if table is None else table[:, 0].to(device)

        def run_ours() -> None:
            attention(q, k, v, table, scale=core.scale, window=row.kind.window).backward(grad)

        found["ours_ms"] = time_calls(run_ours, device, seconds)
    return found


def make_inputs(spec: FlexSpec, shape: Shape, documents: Tensor | None, device: torch.device) -> FlexInputs:
    """The tables of a kind, and the documents."""
    tokens = torch.zeros((shape.batch, shape.length), dtype=torch.int64, device=device)
    given = {"documents": None if documents is None else documents.to(device, torch.int32)}
    return build_flex_inputs(spec, tokens, given)


def find_error(
    shape: Shape, row: Row, inputs: tuple[Tensor, ...], documents: Tensor | None, out: Tensor, grad: Tensor
) -> float | None:
    """The largest distance of output and gradients from naive attention in fp32; None where its scores do not fit."""
    if shape.batch * shape.heads * shape.length**2 > 2**32:
        return None
    q, k, v = (each.detach().float().requires_grad_() for each in inputs)
    groups = shape.heads // shape.kv_heads
    keys, values = (each.repeat_interleave(groups, 2) for each in (k, v))
    scores = torch.einsum("bqhc,bkhc->bhqk", q, keys) * shape.channels**-0.5
    positions = torch.arange(shape.length, device=q.device)
    distance = positions[:, None] - positions[None, :]
    if row.score_mod is add_alibi:
        slopes = 2.0 ** (-8.0 * (torch.arange(shape.heads, device=q.device) + 1) / shape.heads)
        scores = scores - distance * slopes[:, None, None]
    elif row.score_mod is cap_softly:
        scores = SOFT_CAP * torch.tanh(scores / SOFT_CAP)
    seen = distance >= 0
    if row.kind.window:
        seen = seen & (distance < row.kind.window)
    if documents is not None:
        here = documents.to(q.device)
        seen = seen & (here[:, None, :, None] == here[:, None, None, :])
    expected = torch.einsum("bhqk,bkhv->bqhv", scores.masked_fill(~seen, float("-inf")).softmax(-1), values)
    gradients = torch.autograd.grad(expected, (q, k, v), grad.float())
    pairs = [(out, expected), *((each.grad, value) for each, value in zip(inputs, gradients, strict=True))]
    distances = []
    for found, value in pairs:
        assert found is not None
        distances.append(float((found.detach().float() - value.detach()).abs().max() / value.detach().abs().max()))
    for each in inputs:
        each.grad = None
    return max(distances)


def time_calls(call: Callable[[], Any], device: torch.device, seconds: float) -> float:
    """The median of milliseconds, over calls that take so long together."""
    call()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - before))
    return statistics.median(times)


def plan_steps(*, is_tiny: bool, has_more: bool) -> dict[str, TrainerConfig]:
    """Name -> configuration of the steps that are compared."""
    start = load_recipe("llama3_debugmodel" if is_tiny else "llama3_bench_1b")
    if is_tiny:
        start = make_small(start)
    flex = set_attention(start, kernel="flex")
    packed = {"our op": start, "flex": flex}
    found = {f"{name}, {mode}": each for mode in ("exact", "fast") for name, each in pick_mode(packed, mode)}
    if has_more:
        documents = {f"documents, {name}": set_mask(each, "document") for name, each in packed.items()}
        capped = {"soft cap, flex": set_attention(flex, score_mod=cap_softly)}
        found |= {f"{name}, fast": each for name, each in pick_mode(documents | capped, "fast")}
        found |= {f"{name}, eager": each for name, each in pick_mode(packed, "eager")}
    return found


def pick_mode(configs: Mapping[str, TrainerConfig], mode: str) -> Iterator[tuple[str, TrainerConfig]]:
    """The configurations in a mode of `monograph bench`."""
    for name, config in configs.items():
        picked = reset_unused(plan_modes(config, (mode,))[mode], flags=())
        check_config(picked)
        yield name, picked


def make_small(config: TrainerConfig) -> TrainerConfig:
    """Three layers and two blocks of a mask."""
    model = config.model.replace(n_layers=3)
    return config.replace(model=model, training=config.training.replace(seq_len=256, local_batch_size=2))


def set_attention(config: TrainerConfig, **fields: Any) -> TrainerConfig:
    """The same with other fields of model.attention."""
    model: Any = config.model
    return config.replace(model=model.replace(attention=model.attention.replace(**fields)))


def set_mask(config: TrainerConfig, mask: str) -> TrainerConfig:
    """The same with another model.mask."""
    model: Any = config.model
    return config.replace(model=model.replace(mask=mask))


def measure_steps(name: str, config: TrainerConfig, *, steps: int, document: int) -> dict[str, Any]:
    """Speed, memory, losses and compilations of a step, and what the log says of them."""
    load_flex.cache_clear()
    start = time.perf_counter()
    with heard() as told:
        row = run_modes({name: config}, steps=steps, warmup=2, document_tokens=document)[0]
    return describe_row(row) | {"told": told, "wall_s": time.perf_counter() - start}


def describe_row(row: BenchRow) -> dict[str, Any]:
    """What is compared of a measurement."""
    names = ("ms", "tokens_per_second", "peak_gib", "first_step_seconds", "is_recorded", "compilations", "losses")
    return {"run": row.mode, **{name: getattr(row, name) for name in names}}


@contextmanager
def heard() -> Iterator[list[str]]:
    """The lines of the log about FlexAttention's compilations and CUDA graphs, when it is done."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if "compile_flex" in text or "CUDA graph" in text:
                lines.append(text)

    handler = Handler()
    get_log().addHandler(handler)
    yield lines
    get_log().removeHandler(handler)


def compare_bits(steps: int) -> dict[str, Any]:
    """Losses of a debug model with packed documents, captured and op by op: the same bits or not."""
    config = set_mask(set_attention(make_small(load_recipe("llama3_debugmodel")), kernel="flex"), "document")
    config = config.replace(debug=config.debug.replace(deterministic=True))
    losses = {}
    for mode in ("eager", "exact"):
        ((_, picked),) = pick_mode({mode: config}, mode)
        losses[mode] = measure_steps(mode, picked, steps=steps, document=64)["losses"]
    return {"run": "graph against eager", "is_equal": losses["eager"] == losses["exact"], "losses": losses}


def show(found: Mapping[str, Any]) -> None:
    """One short line for each measurement."""
    print(f"\ntorch {found['torch']}, {found['device']}")
    for each in found["ops"]:
        error = "-" if each["error"] is None else f"{each['error']:.1e}"
        ours = f"{each['ours_ms']:8.2f}" if "ours_ms" in each else "       -"
        counts = "+".join(map(str, each["compilations"]))
        print(
            f"{each['shape']:32} {each['row']:20} flex {each['flex_ms']:8.2f} ms, ours {ours} ms, "
            f"tables {each['tables_ms']:6.2f} ms, error {error}, compiled {counts}"
        )
    for each in found["steps"]:
        peak = "-" if each["peak_gib"] is None else f"{each['peak_gib']:.2f}"
        recorded = "CUDA graph" if each["is_recorded"] else "no CUDA graph"
        print(
            f"{each['run']:24} {each['tokens_per_second']:10,.0f} tokens/s {each['ms']:9.2f} ms, peak {peak} GiB, "
            f"first step {each['first_step_seconds']:5.1f} s, compiled {each['compilations']}, {recorded}, "
            f"loss {each['losses'][0]:.5f} -> {each['losses'][-1]:.5f}, {each['wall_s']:.0f} s in all"
        )
    for each in found["bits"]:
        print(f"{each['run']}: {'same bits' if each['is_equal'] else each['losses']}")


def find_problems(found: Mapping[str, Any]) -> list[str]:
    """What is not as it should be, in words."""
    problems = []
    for each in found["ops"]:
        if each["error"] is not None and each["error"] > TOLERANCE:
            problems.append(f"{each['shape']}, {each['row']}: {each['error']:.4f} from the naive form")
        if max(each["compilations"]) > 1:
            problems.append(f"{each['shape']}, {each['row']}: compiled {each['compilations']} times")
    return problems + [f"{each['run']}: bits differ" for each in found["bits"] if not each["is_equal"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="ops,steps,bits", help="parts, separated by commas")
    parser.add_argument("--shapes", default="", help="numbers of the shapes of `ops`: 0,2")
    parser.add_argument("--more", action="store_true", help="steps with documents, a soft cap and op by op as well")
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement of an op")
    parser.add_argument("--steps", type=int, default=8)
    given = parser.parse_args()
    set_up_log(level="debug")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = given.only.split(",")
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(device), "ops": [], "steps": [], "bits": []}
    shapes = TINY if given.tiny else SHAPES
    wanted = [int(each) for each in given.shapes.split(",") if each] or range(len(shapes))
    for number in wanted if "ops" in parts else ():
        load_flex.cache_clear()
        for row in list_rows(shapes[number]):
            seconds = 0.01 if given.tiny else given.seconds
            found["ops"].append(measure_op(shapes[number], row, device, torch.bfloat16, seconds))
    configs = plan_steps(is_tiny=given.tiny, has_more=given.more) if "steps" in parts else {}
    for name, config in configs.items():
        document = config.training.seq_len // 4 if "documents" in name else 0
        found["steps"].append(measure_steps(name, config, steps=given.steps, document=document))
    if "bits" in parts:
        found["bits"].append(compare_bits(given.steps))
    show(found)
    if given.out:
        Path(given.out).write_text(json.dumps(found, indent=1))
    problems = find_problems(found)
    print("\n".join(problems) or "all within limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

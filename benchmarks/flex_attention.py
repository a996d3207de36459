"""FlexAttention on one device: distance from naive fp32 attention, time against our op, compilations, CUDA graphs.

    python benchmarks/flex_attention.py --out flex.json
    python benchmarks/flex_attention.py --tiny            # every part, small, also on a CPU

Three parts. `ops`: forward and backward of every kind in bf16 against a naive form in fp32, with the time of both
FlexAttention and our attention op where it has the same kind. `steps`: tokens per second of training runs with either,
what was compiled, and whether the step was recorded as one CUDA graph. `bits`: a captured run against the run op by op.
Exit code 1 when an output is further away than bf16 explains, a kind was compiled twice, or bits differ.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monograph.kernels.attention import attention
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.flex_attention import FlexCore, FlexInputs, build_flex_inputs
from monograph.models.flex_mods import FlexSpec
from monograph.models.score_mods import SOFT_CAP, add_alibi, cap_softly
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE
from monograph.train.records import read_records

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


def measure_steps(name: str, command: str, recipe: str, steps: int) -> dict[str, Any]:
    """Tokens per second of a run, what its log says of compilations and of the CUDA graph, and its peak of memory."""
    with tempfile.TemporaryDirectory() as folder:
        flags = (
            f"--training.steps {steps} --metrics.log_interval 1 --debug.log_level debug --job.dump_folder {folder}/run"
        )
        words = [sys.executable, "-m", "monograph", "train", recipe, *shlex.split(f"{flags} {command}")]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            return {"run": name, "failed": done.stdout[-3000:]}
        records = [record for record in read_records(Path(folder) / "run" / "metrics.jsonl") if "loss" in record]
    told = [line for line in done.stdout.splitlines() if "compile_flex" in line or "CUDA graph" in line]
    return {
        "run": name,
        "tokens_per_second": statistics.median(record["tokens_per_second"] for record in records[len(records) // 2 :]),
        "loss": [records[0]["loss"], records[-1]["loss"]],
        "peak_memory_gib": records[-1].get("peak_memory_gib"),
        "told": told,
    }


def list_runs(device: torch.device) -> list[tuple[str, str]]:
    """Name and flags of the training runs that are compared."""
    flex = "--model.attention.kernel flex"
    capped = f"{flex} --model.attention.score_mod monograph.models.score_mods:cap_softly"
    eager = "--compile.mode eager"
    runs = [
        ("causal, our op, exact", ""),
        ("causal, flex, exact", flex),
        ("causal, our op, fast", "--compile.numerics fast"),
        ("causal, flex, fast", f"{flex} --compile.numerics fast"),
        ("documents, our op, fast", "--model.mask document --compile.numerics fast"),
        ("documents, flex, fast", f"{flex} --model.mask document --compile.numerics fast"),
        ("soft cap, flex, fast", f"{capped} --compile.numerics fast"),
        ("causal, flex, eager", f"{flex} {eager}"),
    ]
    layer = [("causal, flex, layer", f"{flex} --compile.mode layer")] if device.type == "cuda" else []
    return runs + layer


def compare_bits(recipe: str, flags: str) -> dict[str, Any]:
    """Three steps captured and op by op: the same bits or not."""
    line = f"{recipe} --model.attention.kernel flex --model.mask document --debug.deterministic true {flags}"
    words = [sys.executable, "-m", "monograph", "compare", line, f"{line} --compile.mode eager"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return {"run": "graph against eager", "is_equal": done.returncode == 0, "told": done.stdout.splitlines()[-8:]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="ops,steps,bits", help="parts, separated by commas")
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement of an op")
    parser.add_argument("--steps", type=int, default=12)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = given.only.split(",")
    found: dict[str, Any] = {"torch": torch.__version__, "device": str(device), "ops": [], "steps": [], "bits": []}
    problems = []
    for shape in (TINY if given.tiny else SHAPES) if "ops" in parts else ():
        for row in list_rows(shape):
            result = measure_op(shape, row, device, torch.bfloat16, 0.01 if given.tiny else given.seconds)
            print(result, flush=True)
            found["ops"].append(result)
            if result["error"] is not None and result["error"] > TOLERANCE:
                problems.append(f"{shape.name}, {row.name}: {result['error']:.4f} from the naive form")
            if max(result["compilations"]) > 1:
                problems.append(f"{shape.name}, {row.name}: compiled {result['compilations']} times")
    recipe = "llama3_debugmodel" if given.tiny else "llama3_bench_1b"
    small = "--validator.interval 0 --training.seq_len 128 --model.n_layers 3 " if given.tiny else ""
    for name, flags in list_runs(device) if "steps" in parts else ():
        result = measure_steps(name, small + flags, recipe, 4 if given.tiny else given.steps)
        print(result, flush=True)
        found["steps"].append(result)
        problems += [f"{name}: failed"] if "failed" in result else []
    if "bits" in parts:
        result = compare_bits(recipe, f"{small or '--model.n_layers 3'} --training.steps 3")
        print(result, flush=True)
        found["bits"].append(result)
        problems += [] if result["is_equal"] else ["graph and eager differ"]
    if given.out:
        Path(given.out).write_text(json.dumps(found, indent=1))
    print("\n".join(problems) or "all within limits")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

"""Experts' exchanges under compute, on the clock: every strategy and mode on an emulated network.

    python benchmarks/expert_overlap.py
    python benchmarks/expert_overlap.py --device cuda --dim 2048 --seq 4096 --steps 10

One rank of a fake world trains for real; its exchanges loop back and take `latency + bytes / bandwidth` beside
compute (benchmarks/fabric.py). The bandwidth is chosen so that all exchanges of a step take as long as the
experts compute in it (times --share), measured just before: on a busy machine ratios last longer than times. Printed
for each way: the step, its ratio to the step whose exchanges cost nothing, how long exchanges take in all, how long
compute waits for them, and the memory at the peak.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fabric import Fabric, emulated_groups
from monograph.axes import Group
from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.execute.graph_step import GraphStep
from monograph.graph.cost import find_node_costs
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import find_memory
from monograph.graph.tags import tag_of
from monograph.log import set_up_log
from monograph.machine.choose import AUTO
from monograph.machine.device import Machine
from monograph.machine.file import write_machine
from monograph.parallel.groups import Groups
from monograph.passes.overlap.simulate import is_exchange
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

MODES = {
    "block batch": {"modules": "layers.*", "chunk_dim": "batch"},
    "experts batch": {"modules": "layers.*.moe", "chunk_dim": "batch"},
    "experts seq": {"modules": "layers.*.moe", "chunk_dim": "seq"},
}
WAYS: dict[str, dict[str, str]] = {
    "off": {"strategy": "off"},
    **{
        f"{strategy}, {mode}": {"strategy": strategy, **MODES[mode]}
        for strategy in ("trace", "graph")
        for mode in MODES
    },
}
EXCHANGE = frozenset({Group.EP.value})


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one way did; seconds of a step, medians."""

    name: str
    pure_seconds: float
    """With exchanges that cost nothing."""
    step_seconds: float
    ratio: float
    """Of the two, step by step."""
    exchange_seconds: float
    exposed_seconds: float
    """What is left of the difference: measured as waiting on a CPU, as the longer step on a GPU."""
    peak_bytes: int
    """CUDA: what the allocator held at most; CPU: by the model of memory."""

    @property
    def hidden(self) -> float:
        """The part of the exchanges that nobody waits for."""
        return 1 - self.exposed_seconds / self.exchange_seconds if self.exchange_seconds else 1.0


def make_config(options: argparse.Namespace, way: dict[str, str], machine: str) -> TrainerConfig:
    """The debug recipe in the wanted size."""
    changes: dict[str, Any] = {
        "model.n_layers": options.layers,
        "model.dim": options.dim,
        "model.moe.hidden_dim": options.dim,
        "model.moe.n_experts": 4,
        "model.moe.router.top_k": 2,
        "model.moe.router.force_balance": True,
        "training.local_batch_size": options.batch,
        "training.seq_len": options.seq,
        "model.rope.max_seq_len": options.seq,
        "parallelism.fsdp": "graph",
        "parallelism.expert_parallel_degree": options.ranks,
        "compile.mode": "graph",
        "activation_checkpoint.mode": "none",
        "debug.device": options.device,
        **{f"compile.expert_overlap.{name}": value for name, value in way.items()},
        "machine": machine,
    }
    if options.device == "cpu":
        changes |= {"training.compute_dtype": "float32", "model.moe.experts.backend": "loop"}
    config = load_recipe("qwen3_debugmodel_moe")
    for path, value in changes.items():
        config = replace_leaf(config, path, value)
    check_config(config)
    return config


class Runner:
    """One way, built and warm."""

    def __init__(self, config: TrainerConfig, groups: Groups) -> None:
        step = build_step(config, groups)
        assert isinstance(step, GraphStep)
        self.step, self.device = step, groups.device
        if groups.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        shape = (config.training.local_batch_size, config.training.seq_len)
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, config.model.vocab_size, shape, generator=generator).to(groups.device)
        self.batch: dict[str, Tensor] = {
            "tokens": tokens,
            "labels": tokens.roll(-1, 1),
            "positions": torch.arange(shape[1], device=groups.device).expand(shape).contiguous(),
            "documents": torch.zeros_like(tokens),
        }
        self.valid = torch.tensor(tokens.numel(), device=groups.device)
        self.run(2)

    def run(self, steps: int) -> float:
        """The median time of a step."""
        times = []
        for _ in range(steps):
            for parameter in self.step.parameters.values():
                parameter.grad = None
            self.synchronize()
            start = time.perf_counter()
            self.step(self.batch, self.valid)
            self.synchronize()
            times.append(time.perf_counter() - start)
        return statistics.median(times)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def peak_bytes(self) -> int:
        """Measured on a GPU, estimated elsewhere."""
        assert self.step.graph is not None
        is_cuda = self.device.type == "cuda"
        return torch.cuda.max_memory_allocated() if is_cuda else find_memory(self.step.graph).peak_bytes


@dataclass(frozen=True)
class Work:
    """What a step has to do, whatever way it takes."""

    flops: int
    expert_flops: int
    moved_bytes: int
    """By all_to_alls of rows."""

    def make_machine(self, share: float) -> Machine:
        """A machine for the plan on which exchanges take `share` times as long as the experts: only ratios count."""
        seconds = self.expert_flops / 1e12 * share
        link = self.moved_bytes / seconds / 1e9
        return Machine(
            name=f"exchanges {share} x experts",
            float32_tflops=1.0,
            bfloat16_tflops=1.0,
            float8_tflops=1.0,
            matmul_fraction=1.0,
            memory_gb=64,
            memory_gb_per_second=250,
            memory_fraction=1.0,
            link_gb_per_second=link,
            network_gb_per_second=link,
            host_gb_per_second=link,
            collective_latency_us=0,
            devices_per_node=8,
        )


def find_work(options: argparse.Namespace) -> Work:
    """Read the unchunked step's graph."""
    config = make_config(options, WAYS["off"], AUTO)
    device = torch.device(options.device)
    with emulated_groups(plan_run_mesh(config, options.ranks), device, Fabric()) as groups:
        runner = Runner(config, groups)
        assert runner.step.graph is not None
        graph = runner.step.graph.module.graph
        costs = find_node_costs(graph, LikelySizes(graph), runner.step.facts())
        runner.step.close()
    of_experts = sum(count for node, count in costs.flops.items() if ".moe.experts" in tag_of(node).path)
    moved = sum(size for node, size in costs.moved_bytes.items() if is_exchange(node))
    return Work(sum(costs.flops.values()), of_experts, moved)


def measure(config: TrainerConfig, name: str, work: Work, *, steps: int, share: float) -> Row:
    """Run one way with exchanges that cost nothing, and with ones that take as long as the experts just did."""
    fabric = Fabric(groups=EXCHANGE)
    device = torch.device(config.debug.device)
    with emulated_groups(plan_run_mesh(config, config.parallelism.expert_parallel_degree), device, fabric) as groups:
        runner = Runner(config, groups)
        pure = runner.run(steps)
        costly = work.moved_bytes / (pure * share * work.expert_flops / work.flops)
        fabric.forget()
        pairs = []
        for _ in range(steps):  # one after the other: a machine's speed changes within a run
            fabric.bytes_per_second = float("inf")
            free = runner.run(1)
            fabric.bytes_per_second = costly
            pairs.append((runner.run(1), free))
        took = statistics.median(costly for costly, _ in pairs)
        pure = statistics.median(free for _, free in pairs)
        waited = fabric.exposed_seconds[Group.EP.value] / steps
        row = Row(
            name=name,
            pure_seconds=pure,
            step_seconds=took,
            ratio=statistics.median(costly / free for costly, free in pairs),
            exchange_seconds=fabric.seconds[Group.EP.value] / steps,
            exposed_seconds=waited if device.type == "cpu" else max(0.0, took - pure),
            peak_bytes=runner.peak_bytes(),
        )
        runner.step.close()
    return row


def format_table(rows: Sequence[Row]) -> str:
    """Aligned columns; the ratio is to the unchunked step whose exchanges cost nothing."""
    pure = rows[0].pure_seconds
    lines = [("way", "pure ms", "step ms", "x pure", "x own pure", "exchange ms", "exposed ms", "hidden", "peak MiB")]
    for row in rows:
        numbers = (row.pure_seconds, row.step_seconds)
        lines.append(
            (
                row.name,
                *(f"{1e3 * number:.1f}" for number in numbers),
                f"{row.step_seconds / pure:.2f}",
                f"{row.ratio:.2f}",
                f"{1e3 * row.exchange_seconds:.1f}",
                f"{1e3 * row.exposed_seconds:.1f}",
                f"{100 * row.hidden:.0f} %",
                f"{row.peak_bytes / (1 << 20):.0f}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *cells[1:]]) for line, cells in zip(lines, shown, strict=True)
    )


def main(words: Sequence[str] | None = None) -> list[Row]:
    """Measure every way and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--ranks", type=int, default=2, help="ranks that share the experts")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="exchange time as a part of the experts' compute time")
    options = parser.parse_args(words)
    set_up_log(level="warning")
    work = find_work(options)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        write_machine(work.make_machine(options.share), path)
        for name in dict.fromkeys(["off", *options.ways]):
            config = make_config(options, WAYS[name], str(path))
            rows.append(measure(config, name, work, steps=options.steps, share=options.share))
            print(format_table(rows).splitlines()[-1], flush=True)
    print(format_table(rows))
    return rows


if __name__ == "__main__":
    main()

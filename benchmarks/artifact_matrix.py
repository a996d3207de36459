"""Training from an artifact against capturing in the run and against eager: losses and gradient norms, bit for bit.

    python benchmarks/artifact_matrix.py [--device cuda] [--only dp2] [--steps 5] [--out FILE]

Every entry precompiles once in one process, then trains in three ways through `monograph train` itself: on gloo ranks,
or on one GPU.
"""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from monograph.train.records import read_records

ARTIFACT, CAPTURED, EAGER = "artifact", "captured", "eager"


@dataclass(frozen=True)
class Entry:
    """One model on one mesh."""

    recipe: str
    mesh: str
    ranks: int
    degrees: dict[str, int] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    """Of graph mode."""
    common: tuple[str, ...] = ()
    """Of all three ways."""
    has_eager: bool = True
    """Whether the numbers must be those of eager mode too; fused kernels round differently."""

    def flags(self, steps: int, device: str) -> list[str]:
        """What all three ways have in common."""
        short = ["--training.seq_len", "64", "--training.local_batch_size", "1", "--training.steps", str(steps)]
        rest = ["--debug.device", device, "--debug.deterministic", "true", "--parallelism.fsdp", "graph"]
        rest += ["--validator.interval", "0", "--checkpoint.enabled", "false", "--parallelism.timeout_seconds", "600"]
        degrees = [
            word for name, degree in self.degrees.items() for word in (f"--parallelism.{name}_degree", str(degree))
        ]
        return [*short, *rest, *degrees, *self.common]


ENTRIES = (
    Entry("deepseek_v3_debugmodel", "dp4 tp2 ep4 etp1", 8, {"tensor_parallel": 2, "expert_parallel": 4}),
    Entry("llama3_debugmodel", "dp2 tp2", 4, {"tensor_parallel": 2}),
    Entry("qwen3_debugmodel_moe", "ep2", 2, {"expert_parallel": 2}),
    Entry(
        "qwen3_debugmodel_moe",
        "tp2 ep2 etp2",
        4,
        {"tensor_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 2},
    ),
    Entry(
        "llama3_debugmodel",
        "dp2, compiled blocks",
        2,
        more=("--passes.mark_regions.regions", "blocks", "--model.n_layers", "2"),
        has_eager=False,
    ),
    Entry(
        "llama3_debugmodel",
        "1, compiled whole",
        1,
        more=("--passes.on", "compile_whole", "--model.n_layers", "2"),
        has_eager=False,
    ),
)


FAST = ("--passes.mark_regions.regions", "blocks", "outside", "--compile.cuda_graph", "require")
GPU_ENTRIES = (
    Entry("llama3_debugmodel", "1 GPU", 1),
    Entry("deepseek_v3_debugmodel", "1 GPU", 1, common=("--training.compute_dtype", "bfloat16")),
    Entry("llama3_debugmodel", "1 GPU, compiled and recorded", 1, more=FAST, has_eager=False),
    Entry(
        "deepseek_v3_debugmodel",
        "1 GPU, compiled and recorded",
        1,
        more=FAST,
        common=("--training.compute_dtype", "bfloat16"),
        has_eager=False,
    ),
)


def run(words: list[str]) -> float:
    """Run a command of monograph; how long it took."""
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "monograph", *words], capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"monograph {' '.join(words)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return time.perf_counter() - start


def read(folder: Path) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step, exactly as computed."""
    lines = read_records(folder / "metrics.jsonl")
    return [(line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


def measure(entry: Entry, root: Path, steps: int, device: str) -> dict[str, str]:
    """One row of the table."""
    flags = entry.flags(steps, device)
    artifact = root / "artifact"
    graph = entry.more
    made = run(["precompile", entry.recipe, "--out", str(artifact), "--ranks", str(entry.ranks), *flags, *graph])
    ways = {ARTIFACT: ["--compile.artifact", str(artifact), *graph], CAPTURED: graph}
    if entry.has_eager:
        ways[EAGER] = ["--compile.mode", "eager"]
    found = {}
    for name, more in ways.items():
        folder = ["--job.dump_folder", str(root / name)]
        run(["train", entry.recipe, "--ranks", str(entry.ranks), *flags, *more, *folder])
        found[name] = read(root / name)
        assert len(found[name]) == steps, f"{name} made {len(found[name])} steps"
    size = sum(path.stat().st_size for path in artifact.rglob("*") if path.is_file())
    row = {"recipe": entry.recipe, "mesh": entry.mesh, "precompile": f"{made:.1f} s", "size": f"{size / 1024:,.0f} KiB"}
    for name in (CAPTURED, EAGER):
        row[f"= {name}"] = "-" if name not in found else "bitwise" if found[name] == found[ARTIFACT] else "DIFFERS"
    return row | {"last loss": repr(found[ARTIFACT][-1][0]), "last norm": repr(found[ARTIFACT][-1][1])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", default="", help="entries whose recipe and mesh contain this")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", default="", help="also write the table to this file")
    arguments = parser.parse_args()
    rows = []
    for entry in GPU_ENTRIES if arguments.device == "cuda" else ENTRIES:
        if arguments.only in f"{entry.recipe} {entry.mesh}":
            with tempfile.TemporaryDirectory() as folder:
                rows.append(measure(entry, Path(folder), arguments.steps, arguments.device))
            print(rows[-1], flush=True)
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(row.values())} |" for row in rows]
    lines += [
        "",
        f"{arguments.steps} steps, deterministic; {platform.platform()}, Python {platform.python_version()}",
    ]
    print("\n".join(lines))
    if arguments.out:
        Path(arguments.out).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(any("DIFFERS" in row.values() for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""Every debug model on every kind of mesh, through `monograph verify` itself; prints one table.

    python benchmarks/verify_matrix.py [--at-once 2] [--out FILE] [--device cpu]

Takes about half an hour on two cores: each entry starts up to 8 ranks and compares two whole steps with one device.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DENSE = ("llama3_debugmodel", "qwen3_debugmodel")
WITH_EXPERTS = ("qwen3_debugmodel_moe", "deepseek_v3_debugmodel")
MESHES = {
    "dp2": (2, {}),
    "dp4": (4, {}),
    "hsdp 2x2": (4, {"data_parallel_replicate": 2}),
    "tp2": (2, {"tensor_parallel": 2}),
    "dp2 tp2": (4, {"tensor_parallel": 2}),
}
EXPERT_MESHES = {
    "ep2": (2, {"expert_parallel": 2}),
    "dp4 ep2": (4, {"expert_parallel": 2}),
    "dp4 tp2 ep4 etp1": (8, {"tensor_parallel": 2, "expert_parallel": 4}),
    "dp4 tp2 ep4 etp2": (8, {"tensor_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 2}),
}
SHORT = ("--training.seq_len", "64", "--training.local_batch_size", "1")


@dataclass(frozen=True)
class Entry:
    """One plan of one model."""

    recipe: str
    mesh: str
    fsdp: str
    experts: str

    def words(self, folder: Path, device: str) -> list[str]:
        """The command."""
        ranks, degrees = (MESHES | EXPERT_MESHES)[self.mesh]
        is_captured = self.fsdp == "captured"
        mode = [] if is_captured else ["--compile.mode", "eager", "--parallelism.fsdp", self.fsdp]
        words = ["verify", self.recipe, "--ranks", str(ranks), *mode, *SHORT]
        words += ["--job.dump_folder", str(folder), "--debug.device", device]
        for name, degree in degrees.items():
            words += [f"--parallelism.{name}_degree", str(degree)]
        if self.experts:
            words += ["--model.moe.experts.backend", {"loop": "loop", "grouped": "grouped_mm"}[self.experts]]
        return words


def plan_entries() -> list[Entry]:
    """Dense models on the dense meshes; models with experts on all, with both ways to compute experts."""
    kinds = ("fsdp2", "graph", "captured")
    found = [Entry(recipe, mesh, kind, "") for recipe in DENSE for mesh in MESHES for kind in kinds]
    found += [
        Entry(recipe, mesh, kind, experts)
        for recipe in WITH_EXPERTS
        for mesh in MESHES | EXPERT_MESHES
        for kind in kinds
        for experts in ("loop", "grouped")
    ]
    return found


def run(entry: Entry, root: Path, device: str) -> dict[str, Any]:
    """Run one entry and read what it found."""
    folder, start = (
        root / "-".join((entry.recipe, entry.mesh, entry.fsdp, entry.experts)).replace(" ", "_"),
        time.time(),
    )
    words = [sys.executable, "-m", "monograph", *entry.words(folder, device)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
    found: dict[str, Any] = {"entry": entry, "code": done.returncode, "seconds": time.time() - start}
    if (folder / "verify.json").exists():
        found |= json.loads((folder / "verify.json").read_text())
        found["worst"] = max(largest(row) for row in found["modules"])
    else:
        found["blame"] = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no output"
    return found


def largest(row: dict[str, Any]) -> float:
    """The largest difference of a module."""
    kinds = ("start", "forward", "backward", "gradient", "updated")
    return max([float(row[kind]) for kind in kinds if row[kind] is not None], default=0.0)


def show(found: dict[str, Any]) -> str:
    """One line of the table."""
    entry = found["entry"]
    verdict = "equal" if found["code"] == 0 else f"**different**: {found['blame']}"
    numbers = [
        f"{found[name]:.1e}" if isinstance(found.get(name), float) else "" for name in ("worst", "loss", "grad_norm")
    ]
    cells = (entry.recipe, entry.mesh, entry.fsdp, entry.experts, verdict, *numbers, f"{found['seconds']:.0f}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run all entries and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-once", type=int, default=1, help="entries that run side by side")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    head = ("model", "mesh", "sharding", "experts", "verdict", "largest", "loss", "norm", "seconds")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    print("\n".join(lines), flush=True)
    root, equal = Path(tempfile.mkdtemp(prefix="verify-matrix-")), 0
    with ThreadPoolExecutor(options.at_once) as threads:
        for found in threads.map(lambda entry: run(entry, root, options.device), plan_entries()):
            lines.append(show(found))
            equal += found["code"] == 0
            print(lines[-1], flush=True)
    lines.append(f"\n{equal} of {len(plan_entries())} are equal.")
    print(lines[-1])
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

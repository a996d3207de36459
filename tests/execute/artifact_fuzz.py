"""Graph files changed by somebody who put the hashes right: `make test-fuzz`, or --seed 17 for one.

    python -m tests.execute.artifact_fuzz [--count 2000] [--first 0] [--seed 17]

A seed decides everything. Each mutant is loaded and run for one step as a run would do it, in a watched child: it is
refused in words, or runs and touches nothing. Anything else is a failure.
"""

import argparse
import hashlib
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._subclasses.schema_check_mode  # torch imports it only while it reports some errors
import torch.distributed as dist

from monograph.commands.precompile import precompile
from monograph.compat.ops import fake_store
from monograph.config.leaves import replace_leaf
from monograph.errors import MonographError
from monograph.execute.artifact.folder import read_manifest
from monograph.execute.artifact.manifest import MANIFEST, render_manifest
from monograph.execute.graph_step import GraphStep
from monograph.manifest.fields import FileRecord
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.run import build_graph_step, make_example
from monograph.train.startup import Startup
from tests.execute.graph_mutations import Mutator
from tests.execute.sandbox import Ended, Watched, make_watched, run_watched
from tests.execute.updates import CPU
from tests.kit.tiny import tiny

ONE = Mesh()
OFFLOADED = PassesConfig(
    offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=64),
    on=("cache_cast_weights",),
)
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "collectives": ("llama3", {"passes.off": ("elide_trivial_collectives",)}),
    "experts": ("qwen3_moe", {"model.moe.experts.backend": "loop"}),
    "custom ops": (
        "deepseek_v3",
        {"model.kernels": "fused", "model.n_layers": 2, "training.compute_dtype": "bfloat16", "passes": OFFLOADED},
    ),
}
"""Steps that are changed: every kind of node is in one of them."""
PICKLE = b"cos\nsystem\n(S'touch mark'\ntR."
REASONS = {
    "not in the list of allowed operators": "list of operators",
    "has compiled parts|parts and files|has compiled code|files has kernels": "code nobody asked for",
    "may be|no text is allowed|takes no arguments|takes \\d|pinned memory|a function has": "arguments",
    "names the device|writes into|random numbers|this run is on": "purity",
    "does not accept|the file says|do not fit|falls into|is not read from one|has the size|two sizes": "values",
    "of memory|64 bits": "memory",
    "named twice|one loss|the gradient|gradients and|an evaluation|a step needs|the loss is|its input": "signature",
    "collective|there is no group|exchange|gather|scatter|wait": "collectives",
    "forward node|tag|once an update|before it is made|before an input": "order and tags",
    "failed while it ran|reads a size": "the operators, while it ran",
}
"""Words of a refusal -> what refused."""


class Base:
    """A step that runs, and its artifact."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        model, changes = BASES[name]
        self.artifact = folder / name.replace(" ", "-")
        common = {"compile.mode": "graph", "parallelism.fsdp": "graph", "model.n_layers": 1, "training.seq_len": 16}
        config = tiny(model, folder, {**common, **changes})
        precompile(config, ONE, self.artifact)
        self.config = replace_leaf(config, "compile.artifact", str(self.artifact))
        self.content = (self.artifact / "step.json").read_bytes()

    def build(self, groups: Groups) -> None:
        """The step of the honest artifact, run once: whatever is imported late has been imported."""
        self.groups = groups
        step = build_graph_step(self.config, groups, Startup(), None, None)
        self.run(step)

    def run(self, step: GraphStep) -> None:
        """One training step."""
        example = make_example(self.config, step.source)
        step(example.batch, example.scalars)


class Fuzzer:
    """Makes mutants and watches what they do."""

    def __init__(self, stack: ExitStack, names: Sequence[str] = tuple(BASES)) -> None:
        torch.set_num_threads(1)
        self.folder = Path(tempfile.mkdtemp(prefix="artifact-fuzz-"))
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.bases = [Base(name, self.folder) for name in names]
        dist.init_process_group("fake", store=fake_store(), rank=0, world_size=1)
        stack.callback(dist.destroy_process_group)
        groups = Groups(ONE, 0, CPU)
        stack.callback(groups.close)
        self.watched: Watched = make_watched()
        stack.callback(shutil.rmtree, self.watched.folder.parent, ignore_errors=True)
        for base in self.bases:
            base.build(groups)
        self.expected = {base.name: self.watch_honest(base) for base in self.bases}

    def watch_honest(self, base: Base) -> list[str]:
        """What a child does that loads the artifact as it was made: it looks for the versions of packages."""
        ended = self.watch(base, base.artifact)
        assert ended.answer.get("outcome") == "ran" and not ended.signal, ended
        assert all(any(repr(path) in event for path in sys.path) for event in ended.events), ended.events
        return ended.events

    def watch(self, base: Base, artifact: Path) -> Ended:
        """How a child ends that loads an artifact and runs one step of it."""
        return run_watched(partial(load_and_run, base, artifact), (str(self.folder), "/proc", "/sys"))

    def check_seed(self, seed: int) -> tuple[str, str]:
        """What became of a seed's mutant, in a word; and what is wrong with that, if anything."""
        base = self.bases[seed % len(self.bases)]
        changes = self.write(base, seed)
        ended = self.watch(base, self.folder / "mutant")
        expected = self.expected[base.name]
        ended = ended._replace(events=[event for event in ended.events if event not in expected])
        return judge(ended, is_touched=self.watched.take_events(), changes=changes)

    def write(self, base: Base, seed: int) -> list[str]:
        """The mutant of a seed in a folder of its own, with hashes that are right."""
        mutator = Mutator(json.loads(base.content), seed, self.watched.paths)
        changes = mutator.mutate()
        target = self.folder / "mutant"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(base.artifact, target)
        manifest = read_manifest(target)
        sections, files = dict(manifest.sections), dict(manifest.files)
        written = {"step.json": json.dumps(mutator.data).encode()}
        if mutator.pick.random() < 0.02:
            written["regions/step-compiled_0.bin"] = PICKLE
            sections["parts"] = {**sections["parts"], "step": ["compiled_0"]}
            changes.append("add_code")
        for name, content in written.items():
            (target / name).parent.mkdir(exist_ok=True)
            (target / name).write_bytes(content)
            files[name] = FileRecord(len(content), hashlib.sha256(content).hexdigest())
        (target / MANIFEST).write_bytes(render_manifest(sections, files, None))
        return changes


def load_and_run(base: Base, target: Path) -> dict[str, Any]:
    """In the child: what a run does with an artifact, up to the end of the first step."""
    config = replace_leaf(base.config, "compile.artifact", str(target))
    try:
        base.run(build_graph_step(config, base.groups, Startup(), None, None))
    except MonographError as error:
        return {"outcome": "refused", "why": f"{error.what}; {error.why}"}
    return {"outcome": "ran", "why": ""}


def judge(ended: Ended, *, is_touched: bool, changes: list[str]) -> tuple[str, str]:
    """What became of a mutant, and what is wrong with that."""
    problem = ""
    if ended.signal:
        problem = f"the process was ended by {ended.signal}"
    elif is_touched:
        problem = "it touched a file"
    elif ended.events:
        problem = f"it did {ended.events}"
    elif ended.answer.get("outcome") not in ("refused", "ran"):
        problem = f"it ended with a traceback:\n{ended.answer.get('why')}"
    if problem:
        return "failed", f"{problem}\n  changes: {', '.join(changes)}"
    return find_reason(ended.answer["why"]) if ended.answer["outcome"] == "refused" else "ran", ""


def find_reason(why: str) -> str:
    """Which check refused a mutant."""
    found = (reason for words, reason in REASONS.items() if re.search(words, why))
    return f"refused: {next(found, 'the form of the file')}"


def main() -> None:
    """Seeds in a row; prints what became of them, and ends with exit code 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--seed", type=int, help="check this seed only, and say what became of it")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.count) if options.seed is None else [options.seed]
    counts: Counter[str] = Counter()
    start, failed = time.monotonic(), 0
    with ExitStack() as stack:
        fuzzer = Fuzzer(stack)
        for seed in seeds:
            if time.monotonic() - start > options.seconds:
                break
            outcome, problem = fuzzer.check_seed(seed)
            counts[outcome] += 1
            if problem:
                failed += 1
                print(
                    f"seed {seed}: {problem}\n  repeat: python -m tests.execute.artifact_fuzz --seed {seed}", flush=True
                )
            elif options.seed is not None:
                print(f"seed {seed}: {outcome}")
            if counts.total() % 100 == 0:
                print(f"{counts.total()} mutants so far, {failed} failed", flush=True)
    print(f"{counts.total()} mutants in {time.monotonic() - start:.0f} s, {failed} failed")
    for outcome, count in counts.most_common():
        print(f"| {outcome} | {count} |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

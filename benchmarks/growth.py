"""How the cost of building a step grows: with layers it should be linear, with ranks it should not grow at all.

    python benchmarks/growth.py [--layers 16 64] [--ranks 8 1024] [--recipes llama3_debugmodel deepseek_v3_debugmodel]
                                [--out FILE]
    python benchmarks/growth.py --compiled [--layers 2 32] [--recipes llama3_debugmodel]

Everything is measured in this one process under a fake process group, in seconds of the processor; what counts
are the ratios. Targets: capture at most 0.12 s a dense layer and 0.30 s a MoE layer, four times the layers at most 4.4
times the time, 1024 ranks at most 1.05 times 8 ranks, passes at most as long as capture, no more kinds of parts to
compile for 32 layers than for 4, and loading the step from an artifact at least 10 times as fast as building it (here
without the time that a compiler would take). With --compiled the compiler is called, on one rank and with nothing in
its cache, and only its seconds are compared: 32 equal layers should take at most 1.15 times as long as 2.
"""

import argparse
import dataclasses
import gc
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from monograph.capture.capture import capture
from monograph.compat.compiler import compiler_folder, start_workers
from monograph.execute.artifact.check import find_misfits
from monograph.execute.artifact.fields import STEP
from monograph.execute.artifact.folder import check_files, read_manifest, write_artifact
from monograph.execute.artifact.load import Artifact
from monograph.execute.artifact.make import make_files, make_sections
from monograph.execute.artifact.trust import find_trust
from monograph.execute.facts import make_facts
from monograph.execute.memory_limits import find_memory_limits
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.models.sequence_part import WHOLE
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable
from monograph.passes.compile.regions import find_kind, find_region, group_consecutive
from monograph.passes.runner import OptimizedGraph, build_passes, run_passes
from monograph.recipes.catalog import load_recipe
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig

CPU = torch.device("cpu")
TOKENS = (1, 64)
REPEATED = 3
"""Times few layers are built with few and with many ranks: the processor's speed changes within a run."""
TIMES = ("capture_seconds", "passes_seconds", "checked_seconds", "load_seconds")


@dataclass(frozen=True)
class Built:
    """What one step cost to build."""

    recipe: str
    layers: int
    ranks: int
    capture_seconds: float
    passes_seconds: float
    """What the passes take themselves."""
    checked_seconds: float
    """With the checks and the costs after each of them."""
    nodes: int
    kinds: int
    """Distinct parts a compiler would get with blocks as regions."""
    artifact_bytes: int
    load_seconds: float
    """From a folder to a graph that can run."""


def make_mesh(ranks: int, has_experts: bool) -> Mesh:
    """Half of the ranks in pairs of tensor parallelism, experts over four."""
    return Mesh(dp_shard=ranks // 2, tp=2, ep=4 if has_experts else 1) if ranks > 1 else Mesh()


def make_config(recipe: str, layers: int, off: tuple[str, ...] = ()) -> TrainerConfig:
    """Blocks marked for a compiler."""
    config = load_recipe(recipe)
    marks = config.passes.mark_regions.replace(regions=("blocks",))
    return config.replace(
        model=config.model.replace(n_layers=layers),
        training=config.training.replace(local_batch_size=TOKENS[0], seq_len=TOKENS[1]),
        parallelism=config.parallelism.replace(fsdp="graph"),
        compile=config.compile.replace(mode="graph"),
        passes=config.passes.replace(mark_regions=marks, off=off),
    )


def time_compiling(recipe: str, layers: int) -> tuple[float, int]:
    """Seconds on the wall (compilers run in processes of their own), and how often the compiler was called."""
    config = make_config(recipe, layers)
    with tempfile.TemporaryDirectory() as folder, fake_groups(Mesh(), 0, CPU) as groups:
        source, settings = build_source(config, groups)
        facts, inputs = make_facts(source.table, groups, settings), make_example(config, source)
        start_workers()
        with compiler_folder(Path(folder)):
            captured = capture_and_optimize(source, inputs, facts, build_passes(settings.passes))
    (record,) = [record for record in captured.records if record.name == "compile_regions"]
    return record.seconds, int(record.note.split()[2])


def compare_compiling(recipe: str, layers: Sequence[int]) -> str:
    """The ratio, after a first compilation for imports."""
    time_compiling(recipe, 1)
    (few, kinds), (many, more_kinds) = (time_compiling(recipe, count) for count in layers)
    return (
        f"{recipe}: compiling {layers[0]} layers {few:.1f} s, {layers[1]} layers {many:.1f} s: {many / few:.2f}x, "
        f"{kinds} -> {more_kinds} compilations"
    )


def build(recipe: str, layers: int, ranks: int) -> Built:
    """Capture a step and run the passes on it, with blocks marked for a compiler that is not called."""
    config = make_config(recipe, layers, off=("compile_regions",))
    has_experts = hasattr(config.model, "moe")
    tokens = torch.zeros(TOKENS, dtype=torch.int64)
    with fake_groups(make_mesh(ranks, has_experts), 0, CPU) as groups:
        source, settings = build_source(config, groups)
        facts = make_facts(source.table, groups, settings)
        scalars = {name: torch.tensor(64) for name in source.model.normalizers}
        inputs = source.inputs(source.model.step_inputs(dict.fromkeys(source.model.batch_spec, tokens), WHOLE), scalars)
        gc.collect()
        gc.disable()  # what it costs depends on all that the process has made before
        start = time.process_time()
        graph = capture(source, inputs)
        captured = time.process_time()
        records = run_passes(graph, build_passes(config.passes), facts)
        done = time.process_time()
        size, load = measure_artifact(config, groups.mesh, source.table, facts, graph)
        gc.enable()
    runs = group_consecutive(graph.nodes, lambda node: tag_of(node).compile or None)
    kinds = {find_kind(find_region(run)) for run in runs}
    passes = sum(record.seconds for record in records)
    times = (captured - start, passes, done - captured)
    return Built(recipe, layers, ranks, *times, len(graph.nodes), len(kinds), size, load)


def find_best(rows: Sequence[Built]) -> Built:
    """The least that each thing took."""
    times = {name: min(getattr(row, name) for row in rows) for name in TIMES}
    return dataclasses.replace(rows[0], **times)


def measure_artifact(
    config: TrainerConfig, mesh: Mesh, table: ParamTable, facts: Facts, graph: StepGraph
) -> tuple[int, float]:
    """Bytes of the step's artifact, and seconds to check it, compare it and read it.

    Making the graph a program comes after that, as it comes after a capture.
    """
    graphs = {STEP: OptimizedGraph(graph, ())}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "artifact"
        sections = make_sections(config, mesh, table, CPU, graphs, facts.machine)
        write_artifact(target, sections, make_files(graphs, facts, Path(folder)))
        size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
        gc.collect()  # a fresh process would have nothing to collect
        start = time.process_time()
        manifest = read_manifest(target)
        check_files(target, manifest)
        assert find_misfits(manifest, config, mesh) == []
        artifact = Artifact(target, manifest, find_trust(target, manifest))
        artifact.graph(STEP, facts, specs=graph.inputs, limits=find_memory_limits(CPU))
        return size, time.process_time() - start


def describe(rows: list[Built]) -> list[str]:
    """The ratios between the first row and the others."""
    first = rows[0]
    lines = []
    for row in rows[1:]:
        capture = row.capture_seconds / first.capture_seconds
        passes, checked = row.passes_seconds / first.passes_seconds, row.checked_seconds / first.checked_seconds
        what = f"{row.layers / first.layers:g}x layers" if row.layers != first.layers else f"{row.ranks} ranks"
        load = row.load_seconds / first.load_seconds
        size = row.artifact_bytes / first.artifact_bytes
        lines.append(
            f"{row.recipe}: {what}: capture {capture:.2f}x, passes {passes:.2f}x (with checks {checked:.2f}x), "
            f"{first.kinds} -> {row.kinds} kinds, artifact {size:.2f}x, load {load:.2f}x"
        )
    for row in rows:
        ratio = (row.capture_seconds + row.checked_seconds) / row.load_seconds
        passes, checked = (each / row.capture_seconds for each in (row.passes_seconds, row.checked_seconds))
        lines.append(
            f"{row.recipe}: {row.layers} layers, {row.ranks} ranks: passes take {passes:.2f} of capture's time, "
            f"with checks {checked:.2f}; loading is {ratio:.1f}x faster than building"
        )
    return lines


def main() -> None:
    """Print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=["llama3_debugmodel", "deepseek_v3_debugmodel"])
    parser.add_argument("--layers", nargs=2, type=int, default=[16, 64])
    parser.add_argument("--ranks", nargs=2, type=int, default=[8, 1024])
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--compiled", action="store_true", help="only: how long the compiler takes")
    options = parser.parse_args()
    if options.compiled:
        print("\n".join(compare_compiling(recipe, options.layers) for recipe in options.recipes))
        return
    head = (
        "recipe",
        "layers",
        "ranks",
        "capture s",
        "s a layer",
        "passes s",
        "with checks s",
        "nodes",
        "kinds of parts",
        "artifact MiB",
        "load s",
    )
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    ratios = []
    for recipe in options.recipes:
        (few, many), (small, large) = options.layers, options.ranks
        build(recipe, 2, 1)  # imports and caches
        pairs = [(build(recipe, few, small), build(recipe, few, large)) for _ in range(REPEATED)]  # in turn
        first, last = (find_best(rows) for rows in zip(*pairs, strict=True))
        rows = [first, build(recipe, many, small), last]
        for row in rows:
            seconds = f"{row.capture_seconds:.2f} | {row.capture_seconds / row.layers:.3f} | {row.passes_seconds:.2f}"
            seconds += f" | {row.checked_seconds:.2f}"
            stored = f"{row.artifact_bytes / 2**20:.2f} | {row.load_seconds:.2f}"
            lines.append(
                f"| {row.recipe} | {row.layers} | {row.ranks} | {seconds} | {row.nodes} | {row.kinds} | {stored} |"
            )
        ratios += describe(rows)
    text = "\n".join([*lines, "", *ratios])
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

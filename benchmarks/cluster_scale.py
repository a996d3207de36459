"""What a rank pays for the size of the cluster: groups, tables, checkpoint plans. By simulation, in one process.

    python benchmarks/cluster_scale.py [--ranks 64 256 1024] [--recipe llama3_8b] [--out FILE]

A fake process group stands for the others. Checkpoint plans are made as every rank in turn, and put together as the
first rank does it: what would travel is pickled and counted, and the manifest is rendered with made-up hashes. Nothing
may grow faster than the number of ranks, and what one rank keeps in memory should not grow at all.
"""

import argparse
import math
import pickle
import resource
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.storage import WriteResult

from monograph.axes import Group
from monograph.commands.precompile import capture_as
from monograph.config.leaves import replace_leaf
from monograph.graph.query import group_of, is_launch
from monograph.manifest.fields import FileRecord
from monograph.parallel.boundary import LocalizedShard
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable, build_table
from monograph.recipes.catalog import load_recipe
from monograph.train.build_model import build_model
from monograph.train.checkpoint.manifest import CheckpointManifest, render_manifest
from monograph.train.checkpoint.reader import SafetensorsReader, ShardLoadPlanner
from monograph.train.checkpoint.writer import StagedSavePlanner, StoredPiece, describe_tensor, find_spec
from monograph.train.config import TrainerConfig

CPU = torch.device("cpu")
GPUS_PER_NODE = 8
NCCL_MIB = 4 * 2 * 16 / 16
"""Device memory of one ring of one channel: two buffers of 4 MiB (NCCL_BUFFSIZE); NCCL opens up to 16 channels."""
CHANNELS = 16
HOP_SECONDS = 50e-6
"""One message over TCP between neighbours: making a communicator passes every member's address once around a ring."""

READERS, ITEM_BYTES = 32, 4
"""Ranks whose plans to load are made, evenly spread; bytes of a number."""


@dataclass(frozen=True)
class Scale:
    """One number of ranks."""

    ranks: int
    nodes: int
    groups_seconds: float
    communicators: int
    """Of one rank, with more than one member and distinct names: what `eager` creation makes."""
    eager_mib: float
    eager_seconds: float
    used: int
    """Those that the captured step uses: what is made lazily, each with its first collective."""
    lazy_mib: float
    lazy_seconds: float
    world_communicators: int
    table_seconds: float
    rank_mib: float
    """What Python keeps for groups and table on one rank."""
    local_plan_seconds: float
    plan_kib: float
    """One rank's plan, as it is sent to the first."""
    global_plan_seconds: float
    files: int
    manifest_mib: float
    balance: float
    """The most bytes that a rank writes over the mean."""
    read_balance: float
    """The most bytes that a rank reads over the mean, of some ranks."""
    read_files: int
    """The most files that one of these ranks opens."""


def make_mesh(ranks: int) -> Mesh:
    """Tensor parallelism inside of a node, four replicas from 256 ranks on."""
    replicas = 4 if ranks >= 256 else 1
    return Mesh(dp_replicate=replicas, dp_shard=ranks // GPUS_PER_NODE // replicas, tp=GPUS_PER_NODE)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the processor, and the result."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def make_state(table: ParamTable, rank: int) -> dict[str, LocalizedShard]:
    """A rank's part of a checkpoint, without memory: weights and both moments."""
    return {
        f"{kind}/{slot.name}": LocalizedShard(torch.empty(slot.local_shape, device="meta"), slot, rank)
        for kind in ("model", "optimizer/exp_avg", "optimizer/exp_avg_sq")
        for slot in table
    }


def plan_as(table: ParamTable, rank: int) -> Any:
    planner = StagedSavePlanner()
    planner.set_up_planner(make_state(table, rank), is_coordinator=rank == 0)
    return planner.create_local_plan()


def find_reads(table: ParamTable, rank: int, manifest: CheckpointManifest) -> tuple[int, int]:
    """Bytes that a rank reads to load the checkpoint on the same mesh, and from how many files."""
    reader, planner = SafetensorsReader(Path(), manifest), ShardLoadPlanner()
    planner.set_up_planner(make_state(table, rank), reader.read_metadata())
    items = planner.create_local_plan().items
    chunks = {(name, tuple(chunk.offsets)): chunk for name, each in manifest.tensors.items() for chunk in each.chunks}
    found = {chunks[item.storage_index.fqn, tuple(item.storage_index.offset)].file for item in items}
    return sum(ITEM_BYTES * math.prod(item.lengths) for item in items), len(found)


def find_used_groups(config: TrainerConfig, mesh: Mesh) -> set[str]:
    """Logical names of the groups that collectives of the captured step use, after all passes: of two layers, with
    heads that the mesh can divide."""
    small = replace_leaf(config, "model.n_layers", 2)
    small = replace_leaf(small, "model.attention.n_kv_heads", max(mesh.tp, config.model.attention.n_kv_heads))
    captured = capture_as(0, small, mesh, CPU, is_compiled=False)
    return {group_of(node) for node in captured.graphs["step"].graph.module.graph.nodes if is_launch(node)}


def measure(config: TrainerConfig, ranks: int) -> Scale:
    """Everything for one number of ranks."""
    mesh = make_mesh(ranks)
    model = build_model(config, CPU)
    tracemalloc.start()
    with fake_groups(mesh, 0, CPU) as groups:
        groups_seconds, _ = timed(lambda: [mesh.members(group, ranks - 1) for group in Group])
        table_seconds, table = timed(lambda: build_table(model, model.parallel_plan(), mesh))
        rank_mib = tracemalloc.get_traced_memory()[0] / 2**20
        del groups
    tracemalloc.stop()
    local_seconds, plan = timed(lambda: plan_as(table, ranks - 1))
    plans = [plan_as(table, rank) for rank in range(ranks)]
    planner = StagedSavePlanner()
    planner.set_up_planner(make_state(table, 0), is_coordinator=True)
    global_seconds, (shared, metadata) = timed(lambda: planner.create_global_plan(plans))
    stored, written = [], []
    for rank, each in enumerate(shared):
        record = FileRecord(size=1 << 30, sha256="0" * 64)
        specs = [(item, find_spec(item)) for item in each.items]
        written.append(sum(spec.num_bytes for _, spec in specs))
        name = f"rank-{rank:05d}.safetensors"
        stored += [WriteResult(item.index, spec.num_bytes, StoredPiece(name, spec.key, record)) for item, spec in specs]
    places = {result.index: result.storage_data for result in stored}
    names = {piece.file: piece.record for piece in places.values()}
    tensors = {name: describe_tensor(name, entry, places) for name, entry in metadata.state_dict_metadata.items()}
    manifest = CheckpointManifest(step=1, sequence=1, run="", values={}, tensors=tensors, files=names)
    reads = [find_reads(table, rank, manifest) for rank in range(0, ranks, max(1, ranks // READERS))]
    own = [mesh.members(group, 0) for group in Group]
    sizes = {group.value: len(members) for group, members in zip(Group, own, strict=True) if len(members) > 1}
    used = find_used_groups(config, mesh)
    communicators = len(sizes)
    return Scale(
        ranks=ranks,
        nodes=ranks // GPUS_PER_NODE,
        groups_seconds=groups_seconds,
        communicators=communicators,
        eager_mib=communicators * CHANNELS * NCCL_MIB,
        eager_seconds=HOP_SECONDS * sum(size - 1 for size in sizes.values()),
        used=sum(name in used for name in sizes),
        lazy_mib=sum(name in used for name in sizes) * CHANNELS * NCCL_MIB,
        lazy_seconds=HOP_SECONDS * sum(size - 1 for name, size in sizes.items() if name in used),
        world_communicators=sum(ranks // len(members) for members in own if len(members) > 1),
        table_seconds=table_seconds,
        rank_mib=rank_mib,
        local_plan_seconds=local_seconds,
        plan_kib=len(pickle.dumps(plan)) / 2**10,
        global_plan_seconds=global_seconds,
        files=sum(size > 0 for size in written),
        manifest_mib=len(render_manifest(manifest)) / 2**20,
        balance=max(written) / (sum(written) / len(written)),
        read_balance=max(size for size, _ in reads) / (sum(size for size, _ in reads) / len(reads)),
        read_files=max(files for _, files in reads),
    )


def render(scales: Sequence[Scale], recipe: str) -> str:
    """The table, in Markdown."""
    rows: list[tuple[str, Callable[[Scale], str]]] = [
        ("nodes of 8", lambda s: f"{s.nodes}"),
        ("finding one rank's groups, s", lambda s: f"{s.groups_seconds:.3f}"),
        ("communicators of one rank, all names", lambda s: f"{s.communicators}"),
        ("their buffers if all are made eagerly (computed), MiB", lambda s: f"{s.eager_mib:.0f}"),
        ("time to make them eagerly (computed), s", lambda s: f"{s.eager_seconds:.3f}"),
        ("communicators that the step uses, made lazily", lambda s: f"{s.used}"),
        ("their buffers (computed), MiB", lambda s: f"{s.lazy_mib:.0f}"),
        ("time to make them, in the first step (computed), s", lambda s: f"{s.lazy_seconds:.3f}"),
        ("communicators of the whole job", lambda s: f"{s.world_communicators:,}"),
        ("parameter table, s", lambda s: f"{s.table_seconds:.2f}"),
        ("kept by Python for groups and table on one rank, MiB", lambda s: f"{s.rank_mib:.2f}"),
        ("one rank's checkpoint plan, s", lambda s: f"{s.local_plan_seconds:.3f}"),
        ("its size when sent, KiB", lambda s: f"{s.plan_kib:.0f}"),
        ("all plans put together on the first rank, s", lambda s: f"{s.global_plan_seconds:.1f}"),
        ("files of a checkpoint", lambda s: f"{s.files:,}"),
        ("its manifest, MiB", lambda s: f"{s.manifest_mib:.1f}"),
        ("most bytes written by a rank over the mean", lambda s: f"{s.balance:.3f}"),
        (f"most bytes read by one of {READERS} ranks over their mean", lambda s: f"{s.read_balance:.3f}"),
        ("most files that one of them opens", lambda s: f"{s.read_files}"),
    ]
    lines = [f"| {recipe} | " + " | ".join(f"{scale.ranks:,} ranks" for scale in scales) + " |"]
    lines.append("|" + "---|" * (len(scales) + 1))
    lines += [f"| {name} | " + " | ".join(show(scale) for scale in scales) + " |" for name, show in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--recipe", default="llama3_8b")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    config = load_recipe(given.recipe)
    scales = [measure(config, ranks) for ranks in given.ranks]
    text = render(scales, given.recipe)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{text}\n\nThe whole simulation took {peak:.1f} GiB.")
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

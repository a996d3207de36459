"""What each rank of benchmarks/multi_gpu_check.py does: groups along every axis, every collective, bandwidth, overlap.

python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/multi_gpu_ranks.py --out rows.json
"""

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.axes import POINT_TO_POINT, Axis, Group
from monograph.capture.stage import CarrySpec
from monograph.compat.ops import all_gather, all_reduce, all_to_all, reduce_scatter
from monograph.execute.device import use_device
from monograph.execute.pipeline.links import Links
from monograph.log import find_rank
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.train.checkpoint.ranks import Ranks

Row = tuple[str, bool, float, str]
SIZES = (1, 1_000, 1 << 20)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
CARRIED = (torch.float32, torch.bfloat16, torch.int64)
"""What pipeline ranks send each other."""
MEGABYTES = (1, 16, 128)
REPEATS = 5
MATMUL = 2048


def check_groups(groups: Groups) -> Row:
    """All ranks create the same groups in the same order: the order of every rank's groups, by digest."""
    mesh, world = groups.mesh, groups.mesh.world_size
    order = [(group.value, mesh.members(group, rank)) for group in Group for rank in range(world)]
    groups.check_same("the order of the groups", hashlib.sha256(repr(order).encode()).hexdigest())
    mine = {group.value: groups.process_group(group).size() for group in Group}
    wrong = [name for name, size in mine.items() if size != mesh.group_size(Group(name))]
    return "group creation order, by digest", not wrong, 0.0, f"{len(order)} groups; wrong sizes: {wrong or 'none'}"


def fill(rank: int, count: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Values that tell ranks apart and that every dtype holds, sums included."""
    return ((torch.arange(count, device=device) + rank) % 7).to(dtype)


def check_collectives(groups: Groups) -> Iterator[Row]:
    """Every collective that graphs contain, against sums made on this rank; then several at once on two groups."""
    world, rank, device = groups.mesh.world_size, groups.rank, groups.device
    name = Group.WORLD.value
    for dtype in DTYPES:
        begin, wrong = time.perf_counter(), []
        for count in SIZES:
            inputs = [fill(each, count * world, dtype, device) for each in range(world)]
            total = torch.stack([each.long() for each in inputs]).sum(0).to(dtype)
            pieces = slice(rank * count, (rank + 1) * count)
            found = {
                "all_gather": (all_gather(inputs[rank], world, name), torch.cat(inputs)),
                "reduce_scatter": (reduce_scatter(inputs[rank], world, name), total[pieces]),
                "all_reduce": (all_reduce(inputs[rank], "sum", name), total),
                "all_reduce max": (all_reduce(inputs[rank], "max", name), torch.stack(inputs).amax(0)),
                "all_to_all": (
                    all_to_all(inputs[rank], [count] * world, [count] * world, name),
                    torch.cat([each[pieces] for each in inputs]),
                ),
            }
            wrong += [f"{what} of {count}" for what, (got, want) in found.items() if not torch.equal(got, want)]
        yield f"collectives, {str(dtype)[6:]}", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"
    yield check_uneven(groups)
    yield check_coalesced(groups)
    yield check_async(groups)
    yield check_objects(groups)


def check_uneven(groups: Groups) -> Row:
    """all_to_all with other sizes for each pair, some of them empty: what experts send."""
    world, rank = groups.mesh.world_size, groups.rank
    sent = [[(source * 3 + target) % 4 for target in range(world)] for source in range(world)]
    rows = torch.full((sum(sent[rank]), 5), float(rank), device=groups.device)
    received = [sent[source][rank] for source in range(world)]
    got = all_to_all(rows, received, sent[rank], Group.EP.value if groups.mesh.ep > 1 else Group.WORLD.value)
    want = torch.cat([torch.full((count, 5), float(source)) for source, count in enumerate(received)])
    return "all_to_all, uneven", torch.equal(got.cpu(), want), 0.0, f"sizes {sent[rank]}"


def check_coalesced(groups: Groups) -> Row:
    """Several tensors in one call, over torch's own group."""
    ops, world, rank = torch.ops._c10d_functional, groups.mesh.world_size, groups.rank
    begin, name = time.perf_counter(), groups.process_group(Group.WORLD).group_name
    inputs = [
        [fill(each, 6 * world + number, torch.float32, groups.device) for number in (0, world)] for each in range(world)
    ]
    mine, totals = inputs[rank], [torch.stack(each).sum(0) for each in zip(*inputs, strict=True)]
    found = {
        "all_gather": ops.all_gather_into_tensor_coalesced(mine, world, name),
        "reduce_scatter": ops.reduce_scatter_tensor_coalesced(mine, "sum", world, name),
        "all_reduce": ops.all_reduce_coalesced(mine, "sum", name),
    }
    wanted = {
        "all_gather": [torch.cat(each) for each in zip(*inputs, strict=True)],
        "reduce_scatter": [each.chunk(world)[rank] for each in totals],
        "all_reduce": totals,
    }
    wrong = [
        what
        for what, values in found.items()
        if not all(torch.equal(ops.wait_tensor(v), w) for v, w in zip(values, wanted[what], strict=True))
    ]
    return "several tensors in one call", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"


def check_objects(groups: Groups) -> Row:
    """What ranks tell each other over the host: flags, objects, the plans of checkpoints."""
    world, rank, begin = groups.mesh.world_size, groups.rank, time.perf_counter()
    ranks = Ranks(groups.checkpoint_group())
    heard = ranks.gather({"rank": rank})
    found = {
        "any_rank": groups.any_rank(rank == world - 1) and not groups.any_rank(False),
        "broadcast": groups.broadcast_object(rank, source=world - 1) == world - 1,
        "all_gather": groups.all_gather_object(rank) == list(range(world)),
        "gather": [each["rank"] for each in heard] == (list(range(world)) if rank == 0 else []),
        "scatter": ranks.scatter([10 * each for each in range(world)]) == 10 * rank,
    }
    wrong = [what for what, passed in found.items() if not passed]
    return "flags and objects over the host", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"


def plan_meshes(world: int) -> dict[str, Mesh]:
    """A mesh for every axis, with degree 2."""
    half = world // 2
    return {
        "dp x replicate": Mesh(dp_replicate=2, dp_shard=half),
        "dp x tp": Mesh(dp_shard=half, tp=2),
        "dp x cp": Mesh(dp_shard=half, cp=2),
        "dp x ep": Mesh(dp_shard=world, ep=2),
        "tp x etp": Mesh(dp_shard=half, tp=2, etp=2),
        "pp x dp": Mesh(pp=2, dp_shard=half),
    }


def check_names(name: str, groups: Groups) -> Row:
    """Under every logical name, the ranks that the mesh says answer, in its order."""
    begin, mesh, wrong = time.perf_counter(), groups.mesh, []
    mine = torch.tensor([groups.rank], device=groups.device)
    for group in Group:
        if group not in POINT_TO_POINT:
            heard = all_gather(mine, mesh.group_size(group), group.value).tolist()
            wrong += [] if heard == list(mesh.members(group, groups.rank)) else [group.value]
    return f"every group's members, {name}", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"


def check_links(groups: Groups) -> Row:
    """Neighbours of a pipeline send each other several values at once, in both directions."""
    begin, links, wrong = time.perf_counter(), Links(groups), []
    last = groups.mesh.pp - 1
    links.connect((one, other) for one in range(last + 1) for other in (one - 1, one + 1) if 0 <= other <= last)
    own = groups.mesh.coordinate(groups.rank, Axis.PP)
    peers = [peer for peer in (own - 1, own + 1) if 0 <= peer <= last]
    for dtype in CARRIED:
        sent = [links.send("values", peer, _make_values(own, dtype, groups.device)) for peer in peers]
        wanted = {peer: _make_values(peer, dtype, groups.device) for peer in peers}
        specs = {
            peer: {name: CarrySpec(tuple(v.shape), dtype, tuple(v.stride())) for name, v in wanted[peer].items()}
            for peer in peers
        }
        coming = {peer: links.receive("values", peer, specs[peer]) for peer in peers}
        for peer, pending in coming.items():
            got = links.wait(pending, "a receive")
            wrong += [f"{dtype} {name}" for name, value in wanted[peer].items() if not torch.equal(got[name], value)]
        for each in sent:
            links.wait(each, "a send")
    return "sends between pipeline ranks", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"


def _make_values(rank: int, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    return {str(size): fill(rank, size, dtype, device) for size in SIZES}


def check_async(groups: Groups) -> Row:
    """Many collectives under way at once over two groups, waited for in another order than they began in."""
    ops, world = torch.ops._c10d_functional, groups.mesh.world_size
    begin, names = time.perf_counter(), (Group.FSDP_GATHER.value, Group.FSDP_SCATTER.value)
    values = [torch.full((1000 + number,), float(number), device=groups.device) for number in range(16)]
    started = [
        ops.all_gather_into_tensor(value, world, names[0]) if number % 2 else ops.all_reduce(value, "sum", names[1])
        for number, value in enumerate(values)
    ]
    results = {number: ops.wait_tensor(started[number]) for number in reversed(range(16))}
    wrong = [
        number
        for number, result in results.items()
        if not torch.equal(
            result.cpu(), values[number].cpu().repeat(world) if number % 2 else values[number].cpu() * world
        )
    ]
    return "16 collectives at once, two groups", not wrong, time.perf_counter() - begin, f"wrong: {wrong or 'none'}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of a few repetitions, after one that does not count."""
    seconds = []
    for _ in range(REPEATS + 1):
        synchronize(device)
        begin = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds[1:])[REPEATS // 2]


def measure_bandwidth(groups: Groups) -> Iterator[Row]:
    """Bytes that one rank sends in a second, by collective and size."""
    world, device, name = groups.mesh.world_size, groups.device, Group.WORLD.value
    for megabytes in MEGABYTES if device.type == "cuda" else MEGABYTES[:1]:
        count = megabytes * (1 << 20) // 4 // world * world
        whole = torch.ones(count, device=device)
        part = whole[: count // world].contiguous()
        splits = [count // world] * world
        sent = 4 * count * (world - 1) / world
        cases: dict[str, tuple[Callable[[], object], float]] = {
            "all_gather": (lambda p=part: all_gather(p, world, name), sent),
            "reduce_scatter": (lambda w=whole: reduce_scatter(w, world, name), sent),
            "all_reduce": (lambda w=whole: all_reduce(w, "sum", name), 2 * sent),
            "all_to_all": (lambda w=whole, s=splits: all_to_all(w, s, s, name), sent),
        }
        for what, (work, bytes_sent) in cases.items():
            seconds = median_seconds(work, device)
            yield f"{what}, {megabytes} MB", True, seconds, f"{bytes_sent / seconds / 1e9:.2f} GB/s sent by each rank"


def measure_overlap(groups: Groups) -> Row:
    """How much of a collective's time matmuls hide when both are under way."""
    device, ops = groups.device, torch.ops._c10d_functional
    size = MATMUL if device.type == "cuda" else 512
    left = torch.randn(size, size, device=device, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32)
    sent = torch.ones((32 if device.type == "cuda" else 2) << 20, device=device)
    count = 20 if device.type == "cuda" else 4

    def multiply() -> None:
        for _ in range(count):
            torch.mm(left, left)

    def both() -> None:
        started = ops.all_reduce(sent, "sum", Group.WORLD.value)
        multiply()
        ops.wait_tensor(started)

    compute = median_seconds(multiply, device)
    alone = median_seconds(lambda: all_reduce(sent, "sum", Group.WORLD.value), device)
    together = median_seconds(both, device)
    hidden = (compute + alone - together) / min(compute, alone)
    text = f"matmuls {1000 * compute:.1f} ms, all_reduce {1000 * alone:.1f} ms, hidden {100 * hidden:.0f} %"
    return "overlap of all_reduce with matmuls", True, together, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = use_device(given.device)
    world = int(os.environ["WORLD_SIZE"])
    with joined_groups(Mesh(dp_shard=world), device, timeout_seconds=120) as groups, torch.no_grad():
        rows = [check_groups(groups), *check_collectives(groups), *measure_bandwidth(groups), measure_overlap(groups)]
        wrong = groups.all_gather_object([name for name, passed, _, _ in rows if not passed])
    for name, mesh in plan_meshes(world).items():
        with joined_groups(mesh, device, timeout_seconds=120) as groups, torch.no_grad():
            found = [check_names(name, groups), *([check_links(groups)] if mesh.pp > 1 else [])]
            wrong += groups.all_gather_object([name for name, passed, _, _ in found if not passed])
            rows += found
    if find_rank() == 0:
        everywhere = {name for names in wrong for name in names}
        given.out.write_text(json.dumps([[name, name not in everywhere, s, text] for name, _, s, text in rows]))


if __name__ == "__main__":
    main()

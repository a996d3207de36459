"""What each rank of benchmarks/multi_gpu_check.py does: groups, every collective, bandwidth, overlap.

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

from monograph.axes import Group
from monograph.compat.ops import all_gather, all_reduce, all_to_all, reduce_scatter
from monograph.execute.device import find_device
from monograph.log import find_rank
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.mesh import Mesh

Row = tuple[str, bool, float, str]
SIZES = (1, 1_000, 1 << 20)
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
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
    yield check_async(groups)


def check_uneven(groups: Groups) -> Row:
    """all_to_all with other sizes for each pair, some of them empty: what experts send."""
    world, rank = groups.mesh.world_size, groups.rank
    sent = [[(source * 3 + target) % 4 for target in range(world)] for source in range(world)]
    rows = torch.full((sum(sent[rank]), 5), float(rank), device=groups.device)
    received = [sent[source][rank] for source in range(world)]
    got = all_to_all(rows, received, sent[rank], Group.EP.value if groups.mesh.ep > 1 else Group.WORLD.value)
    want = torch.cat([torch.full((count, 5), float(source)) for source, count in enumerate(received)])
    return "all_to_all, uneven", torch.equal(got.cpu(), want), 0.0, f"sizes {sent[rank]}"


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
    device = find_device(given.device)
    world = int(os.environ["WORLD_SIZE"])
    with joined_groups(Mesh(dp_shard=world), device, timeout_seconds=120) as groups, torch.no_grad():
        rows = [check_groups(groups), *check_collectives(groups), *measure_bandwidth(groups), measure_overlap(groups)]
        wrong = groups.all_gather_object([name for name, passed, _, _ in rows if not passed])
    if find_rank() == 0:
        everywhere = {name for names in wrong for name in names}
        given.out.write_text(json.dumps([[name, name not in everywhere, s, text] for name, _, s, text in rows]))


if __name__ == "__main__":
    main()

"""Sums over gloo ranks: the last bit does not depend on where in a buffer a value lies."""

import torch

from monograph.axes import Group
from monograph.compat.ops import all_gather, all_reduce, all_to_all, reduce_scatter
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.ordered_sums import OrderedSums
from tests.kit.ranks import pool

CPU = torch.device("cpu")
RANKS = 3
SIZES = (1, 2, 5, 7, 64)


def make_terms(rank: int, size: int) -> torch.Tensor:
    """What a rank adds: magnitudes far apart, so that every order gives another last bit."""
    generator = torch.Generator().manual_seed(100 * size + rank)
    return torch.randn(size, generator=generator) * 10.0 ** (2 * rank)


def sum_in_order(size: int) -> torch.Tensor:
    total = make_terms(0, size)
    for rank in range(1, RANKS):
        total = total + make_terms(rank, size)
    return total


def add_everywhere() -> list[str]:
    """On every rank: each sum alone and behind others in one buffer; the sums that were not in rank order."""
    wrong = []
    with joined_groups(Mesh(dp_shard=RANKS), CPU, timeout_seconds=30) as groups:
        group, rank = Group.WORLD.value, groups.rank
        assert isinstance(groups._serving[Group.WORLD], OrderedSums)
        for size in SIZES:
            mine, expected = make_terms(rank, RANKS * size), sum_in_order(RANKS * size)
            part = expected.view(RANKS, size)[rank]
            if not torch.equal(reduce_scatter(mine, RANKS, group), part):
                wrong.append(f"reduce_scatter of {size}")
            for before in SIZES:
                others = torch.ones(RANKS, before)
                bucket = torch.cat([others, mine.view(RANKS, size)], dim=1).reshape(-1)
                if not torch.equal(reduce_scatter(bucket, RANKS, group)[before:], part):
                    wrong.append(f"reduce_scatter of {size} behind {before}")
                if not torch.equal(all_reduce(torch.cat([others[0], mine]), "sum", group)[before:], expected):
                    wrong.append(f"all_reduce of {size} behind {before}")
        wrong += check_others(rank, group)
    return wrong


def check_others(rank: int, group: str) -> list[str]:
    """Collectives without rounding are those of gloo."""
    value = torch.arange(6) + 10 * rank
    found = {
        "all_gather": (all_gather(value, RANKS, group), torch.cat([torch.arange(6) + 10 * r for r in range(RANKS)])),
        "max": (all_reduce(value.float(), "max", group), torch.arange(6.0) + 10 * (RANKS - 1)),
        "integers": (all_reduce(value, "sum", group), 3 * torch.arange(6) + 30),
        "all_to_all": (
            all_to_all(value, [2] * RANKS, [2] * RANKS, group),
            torch.cat([torch.arange(2) + 2 * rank + 10 * r for r in range(RANKS)]),
        ),
    }
    return [name for name, (one, other) in found.items() if not torch.equal(one, other)]


def test_a_sum_over_three_ranks_is_in_rank_order_wherever_it_lies_in_a_buffer():
    assert pool.run(RANKS, add_everywhere) == [[]] * RANKS

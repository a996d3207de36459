"""All ranks compute on the same kind of device and talk over the same backend, or none of them starts."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from monograph.errors import ConfigError
from monograph.parallel import rank_devices
from monograph.parallel.rank_devices import GLOO, NCCL, RankDevice, agree_on_backend, choose_backend


def node(host, ranks, gpus, **more):
    """The ranks of a node whose GPUs are dealt out in turn; on the CPU where it shows none."""
    kind = "cuda" if gpus else "cpu"
    return [
        RankDevice(host=host, kind=kind, gpu=f"{host}-{rank % gpus}" if gpus else "", gpus=gpus, **more)
        for rank in range(ranks)
    ]


def test_ranks_with_a_gpu_each_talk_over_nccl_and_ranks_without_over_gloo():
    assert choose_backend(node("a", 8, 8) + node("b", 8, 8)) == NCCL
    assert choose_backend(node("a", 2, 0)) == GLOO
    seen_alone = [RankDevice(host="a", kind="cuda", gpu=str(rank), gpus=1) for rank in range(4)]
    assert choose_backend(seen_alone) == NCCL, "a launcher may show each rank its own GPU only"


def test_a_node_that_lost_a_gpu_is_named_on_every_rank():
    with pytest.raises(ConfigError, match="ranks 8 and 15 on b have one GPU between them") as refused:
        choose_backend(node("a", 8, 8) + node("b", 8, 7))
    assert refused.value.why == "it shows 7 GPUs for 8 ranks"


def test_a_node_whose_driver_is_broken_is_named():
    with pytest.raises(ConfigError, match="rank 8 on b would compute on cpu, and rank 0 on a on cuda"):
        choose_backend(node("a", 8, 8) + node("b", 8, 0))


def test_ranks_share_a_gpu_only_where_that_was_asked_for():
    with pytest.raises(ConfigError, match="ranks 0 and 1 on a have one GPU") as refused:
        choose_backend(node("a", 2, 1))
    assert "--debug.share_gpus true" in refused.value.do
    assert choose_backend(node("a", 2, 1), shares_gpus=True) == GLOO
    assert choose_backend(node("a", 2, 1, nccl_shares=True)) == NCCL
    with pytest.raises(ConfigError):
        choose_backend([*node("a", 1, 1, nccl_shares=True), *node("a", 1, 1)])


def test_all_ranks_hear_the_same_refusal(monkeypatch):
    devices = iter(node("a", 2, 1))
    monkeypatch.setattr(rank_devices, "find_rank_device", lambda _: next(devices))
    store = dist.HashStore()

    def ask(rank):
        with pytest.raises(ConfigError) as refused:
            agree_on_backend(store, rank, 2, torch.device("cpu"))
        return str(refused.value)

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(ask, range(2))
    assert one == other and "one GPU between them" in one

"""What all ranks compute on and talk over, decided once for all of them from what each one sees of its own machine."""

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from monograph.errors import ConfigError

NCCL, GLOO = "nccl", "gloo"
_SHARING = "NCCL_MULTI_RANK_GPU_ENABLE"
"""NCCL 2.30 and newer let ranks share a GPU where this is 1."""


@dataclass(frozen=True, kw_only=True)
class RankDevice:
    """What one rank computes on."""

    host: str
    kind: str
    """cpu or cuda."""
    gpu: str = ""
    """Which GPU of all that there are."""
    gpus: int = 0
    """GPUs that the rank sees."""
    nccl_shares: bool = False
    """Whether NCCL was told to let ranks share one."""


def find_rank_device(device: torch.device) -> RankDevice:
    """This rank's."""
    host = socket.gethostname()
    if device.type != "cuda":
        return RankDevice(host=host, kind=device.type, gpus=torch.cuda.device_count())
    properties: Any = torch.cuda.get_device_properties(device)
    return RankDevice(
        host=host,
        kind=device.type,
        gpu=str(properties.uuid),
        gpus=torch.cuda.device_count(),
        nccl_shares=os.environ.get(_SHARING) == "1",
    )


def choose_backend(found: Sequence[RankDevice], *, shares_gpus: bool = False) -> str:
    """torch's backend for these ranks; refused where they are not alike, or share a GPU and nobody asked for that."""
    first = found[0]
    for rank, each in enumerate(found):
        if each.kind != first.kind:
            raise ConfigError(
                f"rank {rank} on {each.host} would compute on {each.kind}, and rank 0 on {first.host} on {first.kind}",
                why=f"{each.host} shows {each.gpus} GPUs, and {first.host} {first.gpus}",
                do="repair that machine or leave it out; --debug.device cpu takes no GPU on any",
            )
    if first.kind != "cuda":
        return GLOO
    shared = _find_shared(found)
    if shared and not shares_gpus and not all(each.nccl_shares for each in found):
        one, other = shared
        raise ConfigError(
            f"ranks {one} and {other} on {found[other].host} have one GPU between them",
            why=f"it shows {found[other].gpus} GPUs for {sum(each.host == found[other].host for each in found)} ranks",
            do="start as many ranks as there are GPUs; or, to try a mesh out, slowly: --debug.share_gpus true",
        )
    return GLOO if shared and not all(each.nccl_shares for each in found) else NCCL


def agree_on_backend(
    store: dist.Store, rank: int, world_size: int, device: torch.device, *, shares_gpus: bool = False
) -> str:
    """The first rank's choice, on all of them; what it refuses, all refuse in the same words."""
    mine = find_rank_device(device)
    if rank:
        store.set(f"device-of-{rank}", json.dumps(asdict(mine)))
        verdict = json.loads(store.get("backend"))
    else:
        others = [json.loads(each) for each in _get_all(store, [f"device-of-{each}" for each in range(1, world_size)])]
        verdict = _judge([mine, *(RankDevice(**each) for each in others)], shares_gpus=shares_gpus)
        store.set("backend", json.dumps(verdict))
    if isinstance(verdict, str):
        return verdict
    raise ConfigError(verdict["what"], why=verdict["why"], do=verdict["do"])


def _judge(found: Sequence[RankDevice], *, shares_gpus: bool) -> str | dict[str, str]:
    try:
        return choose_backend(found, shares_gpus=shares_gpus)
    except ConfigError as error:
        return {"what": error.what, "why": error.why, "do": error.do}


def _get_all(store: dist.Store, keys: list[str]) -> list[bytes]:
    """The values of many keys, waited for together."""
    if not keys:
        return []
    store.wait(keys)
    return [store.get(key) for key in keys]


def _find_shared(found: Sequence[RankDevice]) -> tuple[int, int] | None:
    """Two ranks on one GPU."""
    known: dict[tuple[str, str], int] = {}
    for rank, each in enumerate(found):
        if (before := known.setdefault((each.host, each.gpu), rank)) != rank:
            return before, rank
    return None

"""FSDP2 with parameters of one module on two meshes: torch 2.12 and later (absent in 2.11).

In a file of its own: DTensor and FSDP2 take a second to import, and only runs with `fully_shard` need them.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed.fsdp._fully_shard._fsdp_common as fsdp_common
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard


def has_parameter_meshes() -> bool:
    """Whether `fully_shard` can put some of a module's parameters on another mesh."""
    return hasattr(fsdp_common, "ShardPlacementResult")


def placements_on(mesh: DeviceMesh) -> Callable[[int], Any]:
    """dim -> what a `shard_placement_fn` returns to shard a parameter along `dim` over `mesh` (replicas by) shards."""
    if mesh.ndim == 1:
        info = fsdp_common.FSDPMeshInfo(mesh, shard_mesh_dim=0)
    else:
        info = fsdp_common.HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    return lambda dim: fsdp_common.ShardPlacementResult(placement=Shard(dim), mesh_info=info)


def release_groups(mesh: DeviceMesh) -> None:
    """Let a mesh forget its process groups: DTensor caches meshes for as long as the process lives (2.11 to 2.13)."""
    mesh._pg_registry.clear()

"""What ranks do in the tests of single collectives and layers."""

from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.axes import Group
from monograph.models.config import LossConfig
from monograph.models.dispatch import LocalDispatch
from monograph.parallel.collectives import (
    all_gather_autograd,
    all_reduce_over,
    all_to_all_autograd,
    reduce_scatter_autograd,
)
from monograph.parallel.expert import ExchangeDispatch
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.tensor import VocabLoss

CPU = torch.device("cpu")
DIM, EXPERTS, TOP_K, TOKENS = 4, 8, 2, 6


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def cross(size: int, dim: int) -> dict[str, Tensor]:
    """Gather and scatter along `dim`, and their gradients for a weighting that differs by rank and place."""
    with joined_groups(Mesh(tp=size), CPU, timeout_seconds=30) as groups:
        shape = [3, 3, 3]
        piece = draw(*shape, seed=groups.rank).requires_grad_()
        shape[dim] *= size
        whole = draw(*shape, seed=10 + groups.rank).requires_grad_()
        gathered, scattered = (
            all_gather_autograd(piece, dim, size, Group.TP),
            reduce_scatter_autograd(whole, dim, size, Group.TP),
        )
        weights = draw(*shape, seed=20 + groups.rank), draw(3, 3, 3, seed=30 + groups.rank)
        ((gathered * weights[0]).sum() + (scattered * weights[1]).sum()).backward()
        return {
            "piece": piece.detach(),
            "whole": whole.detach(),
            "gathered": gathered.detach(),
            "scattered": scattered.detach(),
            "weights": weights,
            "grad_piece": piece.grad,
            "grad_whole": whole.grad,
            "largest": all_reduce_over(piece.detach().amax(), Group.TP, "max"),
        }


def swap_rows(sizes: list[list[int]]) -> dict[str, Tensor]:
    """Rank r sends sizes[r][i] rows to rank i, some of them none."""
    with joined_groups(Mesh(dp_shard=len(sizes), ep=len(sizes)), CPU, timeout_seconds=30) as groups:
        sent, received = sizes[groups.rank], [row[groups.rank] for row in sizes]
        rows = draw(sum(sent), 2, seed=groups.rank).requires_grad_()
        arrived = all_to_all_autograd(rows, received, sent, Group.EP)
        (arrived * (1 + groups.rank)).sum().backward()
        return {"rows": rows.detach(), "arrived": arrived.detach(), "grad": rows.grad}


def send_to_experts(mesh: Mesh, chosen: list[list[list[int]]]) -> dict[str, Any]:
    """A whole round trip through experts that multiply by their number, next to the same on one device."""
    with joined_groups(mesh, CPU, timeout_seconds=30) as groups:
        dispatch = ExchangeDispatch(ep=mesh.ep, etp=mesh.etp)
        experts = torch.tensor(chosen[groups.rank])
        x = draw(len(experts), DIM, seed=groups.rank).requires_grad_()
        weights = draw(len(experts), TOP_K, seed=50 + groups.rank).requires_grad_()
        copies = []
        with patch.object(Tensor, "tolist", lambda self: copies.append(tuple(self.shape)) or TO_LIST(self)):
            out, routed = round_trip(dispatch, x, weights, experts, mesh, groups.coords())
        out.square().sum().backward()
        found = [out.detach(), x.grad, weights.grad]
        x.grad = weights.grad = None
        alone, at_home = round_trip(LocalDispatch(), x, weights, experts, Mesh(), None)
        alone.square().sum().backward()
        same = [
            torch.allclose(one, other, atol=1e-6)
            for one, other in zip(found, [alone.detach(), x.grad, weights.grad], strict=True)
        ]
        load_is_own = torch.equal(routed.load, at_home.load)
        return {"same": same, "copies": copies, "sent": sum(routed.sizes.sent), "load_is_own": load_is_own}


TO_LIST = Tensor.tolist


def round_trip(dispatch: Any, x: Tensor, weights: Tensor, experts: Tensor, mesh: Mesh, coords: Tensor | None) -> Any:
    """Experts answer with `row * (1 + expert)`; each etp rank answers with its share of that."""
    routed = dispatch.dispatch(x, experts, EXPERTS)
    ends = routed.ends.tolist() if coords is None else routed.ends.numpy()
    first = 0 if coords is None else int(coords[6]) * (EXPERTS // mesh.ep)
    factors = torch.zeros(routed.rows.shape[0], 1)
    start = 0
    for index, end in enumerate(ends):
        factors[start : int(end)] = (1 + first + index) / mesh.etp
        start = int(end)
    return dispatch.combine(routed.rows * factors, weights, routed), routed


class WidestTensor(TorchDispatchMode):
    """Remembers the largest last dim of any tensor made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, list | tuple) else [result]:
            if isinstance(value, Tensor) and value.ndim:
                self.width = max(self.width, value.shape[-1])
        return result


def lose(vocab: int, size: int) -> dict[str, Any]:
    """The vocabulary-parallel loss and its gradients, with padding in the last part; and how wide logits became."""
    with joined_groups(Mesh(tp=size), CPU, timeout_seconds=30) as groups:
        rows = -(-vocab // size)
        full = torch.zeros(rows * size, 8)
        full[:vocab] = draw(vocab, 8, seed=1)
        hidden = draw(1, 10, 8, seed=2).requires_grad_()
        labels = torch.randint(0, vocab, (1, 10), generator=torch.Generator().manual_seed(3))
        labels[0, :2], labels[0, 2] = -100, vocab - 1
        weight = full[groups.rank * rows :][:rows].clone().requires_grad_()
        layer = VocabLoss(LossConfig(chunk_tokens=4).build(), groups.coords(), vocab)
        with WidestTensor() as widest:
            loss = layer(hidden, weight, labels, torch.tensor(5))
            loss.backward()
            with torch.no_grad():
                evaluated = layer(hidden, weight, labels, torch.tensor(5))
        return {
            "loss": loss.detach(),
            "evaluated": evaluated,
            "hidden": all_reduce_over(hidden.grad, Group.TP),
            "weight": weight.grad,
            "width": widest.width,
            "inputs": (hidden.detach(), full[:vocab], labels),
        }

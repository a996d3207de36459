"""Sends and receives between pipeline ranks, as functional ops on logical groups.

    token = send(value, peer, tag, group);  wait_tensor(token)      # the value may be freed
    value = wait_tensor(recv([2, 8], dtype, device, peer, tag, group))

`peer` is the other rank's coordinate along pp. Both return at once; like every collective of a graph, they are waited
for by `wait_tensor`, and the sender holds the value until then.
"""

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.compat.ops import find_process_group, register_work

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("send(Tensor value, int peer, int tag, str group) -> Tensor")
_LIBRARY.define("recv(SymInt[] shape, ScalarType dtype, Device device, int peer, int tag, str group) -> Tensor")


def _send(value: Tensor, peer: int, tag: int, group: str) -> Tensor:
    token = value.new_empty(1)
    register_work(token, find_process_group(group).send([value], peer, tag))
    return token


def _recv(shape: list[int], dtype: torch.dtype, device: torch.device, peer: int, tag: int, group: str) -> Tensor:
    value = torch.empty(shape, dtype=dtype, device=device)
    register_work(value, find_process_group(group).recv([value], peer, tag))
    return value


def _fake_send(value: Tensor, peer: int, tag: int, group: str) -> Tensor:
    return value.new_empty(1)


def _fake_recv(shape: list[int], dtype: torch.dtype, device: torch.device, peer: int, tag: int, group: str) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


_LIBRARY.impl("send", _send, "CompositeExplicitAutograd")
_LIBRARY.impl("recv", _recv, "CompositeExplicitAutograd")
torch.library.register_fake("monograph::send", _fake_send, lib=_LIBRARY)
torch.library.register_fake("monograph::recv", _fake_recv, lib=_LIBRARY)
SEND = torch.ops.monograph.send.default
RECV = torch.ops.monograph.recv.default


def find_group(own: int, peer: int) -> Group:
    """The group of values that go from one pipeline rank to another: each direction has communicators of its own."""
    return Group.PP_UP if own < peer else Group.PP_DOWN

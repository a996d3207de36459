"""Tiles of attention over segments: what was fastest on an H200, or a smaller one where a GPU's shared memory needs it.

Tiles decide in which order numbers are added up, so they follow from the head's channels and the kind of the GPU alone:
the same on every rank that has the same GPU, and never tuned.
"""

from typing import NamedTuple

import torch

_RESERVED = 1024
"""Bytes of a multiprocessor's shared memory that a program cannot have."""


class Tiles(NamedTuple):
    """Sizes of a kernel's blocks, and how it runs."""

    rows: int
    block: int
    num_warps: int
    num_stages: int


class AttentionTiles(NamedTuple):
    """Of the three kernels."""

    forward: Tiles
    queries: Tiles
    """Of the gradient of queries."""
    keys: Tiles
    """Of the gradients of keys and values."""


class TileChoice(NamedTuple):
    """Tiles, and what they are for."""

    channels: int
    """Of a head, at most."""
    shared_kib: int
    """Shared memory that the kernels need, at least; compiled with Triton 3.6."""
    tiles: AttentionTiles


_WIDE = Tiles(128, 64, 8, 3)
CHOICES = (
    TileChoice(64, 48, AttentionTiles(Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 3), Tiles(64, 32, 4, 3))),
    TileChoice(128, 88, AttentionTiles(Tiles(64, 64, 4, 3), Tiles(64, 64, 4, 2), Tiles(64, 64, 4, 2))),
    TileChoice(192, 161, AttentionTiles(_WIDE, _WIDE, _WIDE)),
    TileChoice(192, 72, AttentionTiles(Tiles(64, 64, 4, 2), Tiles(64, 32, 8, 2), Tiles(64, 32, 8, 2))),
    TileChoice(256, 144, AttentionTiles(Tiles(128, 64, 8, 2), Tiles(64, 64, 8, 2), Tiles(64, 64, 8, 2))),
    TileChoice(256, 68, AttentionTiles(Tiles(64, 32, 4, 2), Tiles(32, 32, 4, 2), Tiles(32, 32, 4, 2))),
)
"""Narrow heads first, and of tiles for the same heads the larger ones first. What a GPU of compute capability 9 needs
is more (up to 201 KiB), and it has more (227)."""


def choose_tiles(gpu: torch.device, channels: int, value_channels: int) -> AttentionTiles:
    """The tiles for a GPU; of those for the widest of its heads the largest that fit."""
    device = torch.cuda.get_device_properties(gpu)
    return find_tiles(max(channels, value_channels), device.shared_memory_per_multiprocessor - _RESERVED)


def find_tiles(channels: int, shared_bytes: int) -> AttentionTiles:
    """The first for so many channels that fit; if none fit, the smallest: launching it fails with the reason."""
    wide_enough = [each for each in CHOICES if channels <= each.channels]
    fitting = [each for each in wide_enough if each.channels == wide_enough[0].channels]
    return next((each for each in fitting if each.shared_kib << 10 <= shared_bytes), fitting[-1]).tiles

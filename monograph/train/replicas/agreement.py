"""Whether replicas that found each other are replicas of one run: same settings, same step, same bits."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph import strict_json
from monograph.config.json_form import to_json
from monograph.errors import MonographError
from monograph.parallel.mesh import Mesh
from monograph.parallel.observed_group import digest_bits
from monograph.train.replicas.peer_state import PeerState

_OWN_SECTIONS = ("job", "checkpoint", "metrics", "profiler")
_OWN_FIELDS = (
    ("dataloader", "hf_revision"),
    ("fault_tolerance", "replica"),
    ("fault_tolerance", "lighthouse"),
    ("debug", "log_level"),
)
"""What replicas may have each for itself."""
_RANDOM = "rng/"
"""Generators of torch: nothing that is trained depends on them."""


class NotOfThisRun(MonographError):
    """This replica is not like the others; they go on without it."""


@dataclass(frozen=True)
class ReplicaDigest:
    """What is compared, as numbers that can be added up."""

    replica: int
    settings: int
    step: int
    state: int

    def to_row(self, part: int, parts: int) -> Tensor:
        """This replica's row of a table that is zero elsewhere: the sum of all such tables has every row."""
        table = torch.zeros(parts, 4, dtype=torch.int64)
        table[part] = torch.tensor([self.replica, self.settings, self.step, self.state])
        return table


def read_rows(table: Tensor) -> list[ReplicaDigest]:
    """The rows of the sum."""
    return [ReplicaDigest(*row) for row in table.tolist()]


def digest_settings(config: Any, mesh: Mesh, data: Mapping[str, Any]) -> int:
    """The settings and the data (its fingerprint) that all replicas must share, and the mesh of each, as a number."""
    described = to_json(config)
    for section in _OWN_SECTIONS:
        described.pop(section, None)
    for section, field in _OWN_FIELDS:
        described[section].pop(field, None)
    compared = {name: value for name, value in data.items() if name != "revisions"}  # content_hash tells commits
    return _as_int64(f"{strict_json.dump(described)} {mesh} {strict_json.dump(compared)}")


def digest_state(state: PeerState) -> int:
    """Parameters, buffers, moments and the position in the data as a number."""
    names = sorted(name for name in state.tensors if not name.startswith(_RANDOM))
    bits = int(digest_bits([state.tensors[name] for name in names]))
    return _as_int64(f"{bits} {state.values['cursor']} {state.values['tokens']} {names}")


def explain_difference(rows: Sequence[ReplicaDigest], part: int) -> NotOfThisRun | None:
    """Why replica `part` has to leave; None when it is like most others (of two, like the first)."""
    mine = rows[part]
    first = next(row for row in rows if row.replica == mine.replica)
    if first is not mine:
        return NotOfThisRun(
            f"fault_tolerance.replica is {mine.replica}, and another replica with this number takes part",
            why="each of them would count as one of fault_tolerance.replicas",
            do="start each replica with a number of its own",
        )
    common = Counter((row.settings, row.step, row.state) for row in rows).most_common(1)[0][0]
    other = next(row.replica for row in rows if (row.settings, row.step, row.state) == common)
    if mine.settings != common[0]:
        return NotOfThisRun(
            f"the settings or the data of replica {mine.replica} are not those of replica {other}",
            why="all replicas run the same program on the same configuration, data and mesh",
            do="start them with the same files and flags; job, checkpoint, metrics, profiler and replica may differ",
        )
    if (mine.step, mine.state) != common[1:]:
        return NotOfThisRun(
            f"replica {mine.replica} at step {mine.step} does not have the bits of replica {other} at step {common[1]}",
            why="they continue different runs, or one of them has computed wrong",
            do="start this replica in an empty job.dump_folder: it takes the state of the others over",
        )
    return None


def _as_int64(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)

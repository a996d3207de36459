"""What an update asks of the replicas of a run. A run without replicas is one that never has to ask."""

from collections.abc import Sequence

from torch import Tensor


class Replicas:
    """A run without replicas: sums are those of this one, and every update is made."""

    part, parts = 0, 1
    """Which part of the global batch of the next update is this replica's, and into how many it is divided."""

    def join(self) -> None:
        """Before an update: who takes part. A replica that is behind has the state of the others afterwards."""

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the replicas, in place; the same bits on all of them."""

    def commit(self) -> bool:
        """After the sums: whether the update is made. If not, nothing may change, and it is tried again."""
        return True

    def settle(self) -> bool:
        """At the last step: whether every replica that is left has it, so that this one may leave."""
        return True

    def close(self) -> None:
        """Leave; the others go on."""

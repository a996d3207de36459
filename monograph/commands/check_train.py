"""What `train` and `verify` can refuse before torch is imported. In a file of its own: it imports what reads data."""

import os
from typing import Any

from monograph.commands.checks import check_ranks
from monograph.train.config import TrainerConfig
from monograph.train.preflight import check_before_start, check_checkpoint


def check_train(config: TrainerConfig, *, ranks: int, **others: Any) -> None:
    """The mesh fits; data, tokenizer, packages and checkpoint are there. Ranks leave that to their launcher."""
    check_ranks(config, ranks=ranks, **others)
    if "LOCAL_RANK" not in os.environ:
        check_before_start(config)


def check_verify(config: TrainerConfig, *, ranks: int, **others: Any) -> None:
    """The mesh fits, and the checkpoint is there."""
    check_ranks(config, ranks=ranks, **others)
    if "LOCAL_RANK" not in os.environ:
        check_checkpoint(config)

"""What `train` and `verify` can refuse before torch is imported. In a file of its own: it imports what reads data."""

import os
from pathlib import Path
from typing import Any

from monograph.commands.checks import check_ranks
from monograph.machine.gpu_files import check_gpu_files
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.train.preflight import check_before_start, check_checkpoint
from monograph.whole_file import check_output, check_output_folder


def check_train(config: TrainerConfig, *, ranks: int, **others: Any) -> None:
    """The mesh fits; data, tokenizer, packages and checkpoint are there. Ranks leave that to their launcher."""
    check_ranks(config, ranks=ranks, **others)
    if "LOCAL_RANK" not in os.environ:
        check_output_folder("--job.dump_folder", config.job.dump_folder)
        check_before_start(config)


def check_verify(config: TrainerConfig, *, ranks: int, simulate: bool, **others: Any) -> None:
    """The mesh fits, the checkpoint is there, and the verdict can be written."""
    if simulate:
        plan_run_mesh(config, ranks or count_ranks(config.parallelism))
        check_output("--job.dump_folder", str(Path(config.job.dump_folder) / "simulate.json"), makes_folder=True)
        return
    check_ranks(config, ranks=ranks, **others)
    check_gpu_files(config.debug.device)
    check_output("--job.dump_folder", str(Path(config.job.dump_folder) / "verify.json"), makes_folder=True)
    if "LOCAL_RANK" not in os.environ:
        check_checkpoint(config)

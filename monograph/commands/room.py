"""train, bench: whether a GPU has the memory for what is asked for, before anything is allocated there.

Loaded for GPUs only (`table.ROOM`): the planner is as large as the trainer.
"""

import os
from collections.abc import Callable, Mapping

import torch

from monograph.config.origins import Origin
from monograph.errors import MonographError
from monograph.log import get_log
from monograph.machine.choose import choose_machine
from monograph.parallel.mesh import Mesh
from monograph.plan.axes import Fixed, find_fixed
from monograph.plan.planned import PlannedRun
from monograph.plan.room import check_room
from monograph.plan.show import add_flags, make_command
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

log = get_log("run")


def check_run_room(
    config: TrainerConfig, device: torch.device, words: list[str], origins: Mapping[str, Origin]
) -> None:
    """Refuse a run that cannot fit: rank 0 looks, before it meets the others."""
    if os.environ.get("RANK", "0") == "0":
        mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
        _check_on_gpu(config, device, mesh, find_fixed(config, origins), lambda run: make_command(run, words))


def check_bench_room(
    configs: Mapping[str, TrainerConfig], device: torch.device, words: list[str], origins: Mapping[str, Origin]
) -> None:
    """Refuse a mode whose step, of one micro-batch, cannot fit."""
    for mode, config in configs.items():
        alone = config.replace(training=config.training.replace(global_batch_size=-1))

        def suggest(run: PlannedRun, mode: str = mode) -> str:
            return f"monograph bench {add_flags(words, run)} --modes {mode}"

        _check_on_gpu(alone, device, Mesh(), find_fixed(alone, origins), suggest, may_grow=False)


def _check_on_gpu(
    config: TrainerConfig,
    device: torch.device,
    mesh: Mesh,
    fixed: Fixed,
    command: Callable[[PlannedRun], str],
    *,
    may_grow: bool = True,
) -> None:
    """All of the device's memory counts: what other processes hold of it now may be gone when training begins.

    An estimate that cannot be made stops nothing.
    """
    machine = choose_machine(config.machine, torch.cuda.get_device_name(device)).machine
    _, total = torch.cuda.mem_get_info(device)
    try:
        check_room(config, mesh, machine, fixed, room=total, command=command, may_grow=may_grow)
    except MonographError:
        raise
    except Exception as error:
        log.warning("memory was not estimated: %s: %s", type(error).__name__, error)

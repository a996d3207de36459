"""What a run starts from, without the run: for commands that compute its updates and write nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from monograph.parallel.groups import Groups
from monograph.train.checkpoint.manager import Loaded
from monograph.train.config import TrainerConfig
from monograph.train.data.cursor import Cursor
from monograph.train.lr_plan import LrPlan, plan_lr
from monograph.train.optimizer import Optimizer
from monograph.train.saved_settings import check_model
from monograph.train.state import check_resumable, collect_tensors
from monograph.train.step import Step


@dataclass(frozen=True)
class Start:
    """Where a run is before its next update."""

    rates: LrPlan
    step: int = 0
    """Updates that lie behind."""
    cursor: Cursor = field(default_factory=Cursor)


def fill_tensors(config: TrainerConfig, tensors: Mapping[str, Tensor], groups: Groups | None = None) -> Loaded | None:
    """Read what the config asks to start from into `tensors`, which are whole without groups; None from scratch."""

    def check(values: Mapping[str, Any], path: Path, *, model_only: bool) -> None:
        check_model(values, config, path)

    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    process_group = None if groups is None else groups.checkpoint_group()
    reads_only = config.checkpoint.replace(enabled=False)
    with reads_only.build(folder=folder, process_group=process_group, opens=False) as manager:
        found: Loaded | None = manager.resume(tensors, check=check)
    return found


def load_start(config: TrainerConfig, step: Step, optimizer: Optimizer, groups: Groups) -> Start:
    """Fill a step and its optimizer as the trainer would; what comes next follows from the checkpoint."""
    loaded = fill_tensors(config, collect_tensors(step, optimizer), groups)
    peak, steps = config.optimizer.lr, config.training.steps
    if loaded is None or loaded.model_only:
        return Start(plan_lr(config.lr_scheduler, peak=peak, steps=steps).plan)
    check_resumable(loaded.values)
    optimizer.set_updates(loaded.step)
    saved = loaded.values.get("lr_plan")
    rates = plan_lr(config.lr_scheduler, peak=peak, steps=steps, done=loaded.step, saved=saved).plan
    return Start(rates, loaded.step, Cursor.from_json(loaded.values["cursor"]))

"""Settings of saving and resuming. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError

LATEST, AUTO = "latest", "auto"
"""Values of `load`: the newest good checkpoint of this run; the same, or none when there is none."""


@dataclass(kw_only=True, slots=True)
class CheckpointConfig(Configurable.Config):
    """When checkpoints are written, how many are kept, and what a run starts from."""

    owner: ClassVar[str] = "monograph.train.checkpoint.manager:CheckpointManager"
    enabled: bool = True
    """Write checkpoints; loading works either way."""
    folder: str = "checkpoints"
    """Where they are kept, relative to job.dump_folder; an absolute path stands for itself."""
    interval: int = 500
    """Steps between checkpoints; 0 writes none on the way."""
    save_last: bool = True
    """Also write one when training ends."""
    keep_last: int = 3
    """Delete this run's older checkpoints beyond so many, once a newer one is committed; 0 keeps all."""
    async_save: bool = False
    """Copy the state to host memory and go on training while a thread writes it."""
    on_error: Literal["continue", "stop"] = "continue"
    """What to do when one cannot be written (disk full, I/O error); the last one of a run is always an error."""
    timeout_seconds: float = 1800.0
    """How long ranks wait for each other's files, and for each other before the first step; then the run ends with an
    error. A rank that hangs inside of a save is found after this time."""
    slow_write_seconds: float = 60.0
    """Name a rank that has been writing one file of a checkpoint for so long, in the log and in the records of steps;
    0 never does."""
    load: str = ""
    """Start from: latest, auto (latest, or from scratch when there is none), a step number, or a path."""
    load_model_only: bool = False
    """Take only the weights from `load`, for fine-tuning: step, optimizer, data position and rng start anew."""
    initial_load_path: str = ""
    """Weights to start from where `load` asks for no checkpoint or finds none: a Hugging Face folder, an import, a
    checkpoint, or a folder of checkpoints for the newest good one. --model.from sets it."""

    allow_model_changes: bool = False
    """Load weights although the model's settings (RoPE, norms, heads, ...) are not those they were trained with."""

    def check(self) -> None:
        if not self.folder:
            raise ConfigError("folder is empty", why="checkpoints need a place", do="--checkpoint.enabled False")
        if self.interval < 0:
            raise ConfigError(f"interval is {self.interval}", why="it counts steps", do="write 0 for none on the way")
        if self.keep_last < 0:
            raise ConfigError(f"keep_last is {self.keep_last}", why="it counts checkpoints", do="write 0 to keep all")
        check_range(self, "timeout_seconds", 0.001, 1e8, why="torch waits a whole number of milliseconds")
        check_range(self, "slow_write_seconds", 0.001, 1e8, zero="to name none")
        if self.load_model_only and not self.load:
            raise ConfigError(
                "load_model_only is set but load is empty",
                why="there is nothing to take the weights from",
                do="--checkpoint.load PATH",
            )

"""`monograph precompile`: what can be refused without torch is refused here; then the step is captured and written."""

import importlib
from pathlib import Path

from monograph.commands.inspect import count_ranks
from monograph.errors import ConfigError
from monograph.execute.artifact.folder import check_target
from monograph.execute.artifact.keys import read_key
from monograph.locks.folder_lock import locked_output
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh


def precompile(config: TrainerConfig, *, out: str, ranks: int, overwrite: bool, words: list[str]) -> int:
    """Write the artifact that every rank of the mesh loads."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}", why="an artifact holds the captured step", do="leave it out"
        )
    if config.compile.artifact:
        raise ConfigError(
            f"compile.artifact is {config.compile.artifact}",
            why="precompile makes an artifact from the model, not from another artifact",
            do="leave it out",
        )
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    read_key(config.compile.artifact_key_file)
    make = importlib.import_module("monograph.commands.precompile_step").precompile_step
    with locked_output(Path(out)):
        check_target(Path(out), overwrite=overwrite)
        return make(config, mesh, Path(out), words=words, overwrite=overwrite)

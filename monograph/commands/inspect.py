"""`monograph inspect`: what can be refused without torch is refused here; then the step is captured and described."""

import importlib
from pathlib import Path

from monograph.errors import ConfigError
from monograph.locks.folder_lock import locked_output
from monograph.parallel.config import ParallelismConfig
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh


def inspect(config: TrainerConfig, *, out: str, ranks: int, recipe: str, words: list[str]) -> int:
    """Write the report of one rank's step into a folder."""
    if config.compile.mode != "graph":
        raise ConfigError(
            f"compile.mode is {config.compile.mode}", why="inspect shows the captured graph", do="leave it out"
        )
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    with locked_output(Path(out)):
        folder = make_folder(out)
        describe = importlib.import_module("monograph.commands.inspect_step").inspect_step
        return describe(config, mesh, folder, recipe=recipe, words=words)


def count_ranks(config: ParallelismConfig) -> int:
    """The ranks that the degrees ask for; an open shard degree counts as one."""
    degrees = (
        config.data_parallel_replicate_degree,
        max(1, config.data_parallel_shard_degree),
        config.tensor_parallel_degree,
        config.context_parallel_degree,
        config.pipeline_parallel_degree,
    )
    count = 1
    for degree in degrees:
        count *= degree
    return count


def make_folder(out: str) -> Path:
    """The folder, without the graphs of an earlier report; other files stay."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in [*folder.glob("[0-9][0-9]-*.txt"), *folder.glob("[0-9][0-9]-*.diff")]:
            old.unlink()
    except OSError as error:
        raise ConfigError(f"--out {out}", why=f"it cannot be written: {error}", do="choose another folder") from None
    return folder

"""`monograph goodput`: where the time of a job went, over all of its restarts."""

from dataclasses import asdict
from pathlib import Path

from monograph import strict_json
from monograph.commands.arguments import GoodputArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.errors import ConfigError
from monograph.plurals import counted
from monograph.system.console import print_plain
from monograph.train.goodput import FILE, summarize


def show_goodput(arguments: GoodputArguments) -> int:
    """Print the summary of a run's folder."""
    found = summarize(Path(arguments.folder))
    if found is None:
        raise ConfigError(
            f"there is no {FILE} in {arguments.folder}",
            why="training writes it",
            do="name the job.dump_folder of a run",
        )
    if arguments.json:
        print_plain(strict_json.dump(asdict(found) | {"goodput": found.goodput}, indent=1))
        return 0
    print_title(
        f"Goodput {100 * found.goodput:.1f} %",
        f"{found.total_seconds:.1f} s in {counted(found.starts, 'start')}, to step {found.last_step}",
    )
    rows = [(name, f"{seconds:.1f} s", f"{_percent(seconds, found.total_seconds)}") for name, seconds in found.rows()]
    print_rows(rows, ("bold cyan", "none", "none"))
    print_plain(f"\nsteps repeated after restarts: {found.lost_steps}")
    return 0


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""

"""`monograph bisect`: two lines, update by update in one process, to the pass and node that changed a number."""

import os

from monograph.bisect.run import Outcome, bisect
from monograph.bisect.show import describe_outcomes
from monograph.commands.bisect_lines import BisectLines, read_lines
from monograph.commands.insight_arguments import BisectArguments
from monograph.crash import print_stacks_on_crash
from monograph.errors import EXIT_FAILED
from monograph.execute.device import deterministic_kernels, use_device
from monograph.launch.local import launch
from monograph.log import set_up_log
from monograph.parallel.groups import joined_groups
from monograph.private_temporary import private_temporary
from monograph.system.console import print_plain
from monograph.train.layout import plan_run_mesh


def bisect_command(arguments: BisectArguments) -> int:
    """Compare, on one rank or on as many as the lines ask for; exit code 1 when a number differs."""
    lines = read_lines(arguments)
    if lines.ranks > 0 and "WORLD_SIZE" not in os.environ:
        with private_temporary("monograph-bisect-") as folder:
            config = lines.left.replace(job=lines.left.job.replace(dump_folder=str(folder)))
            words = ["bisect", arguments.left, *([arguments.right] if arguments.right else [])]
            flags = ["--steps", str(arguments.steps), "--tolerance", repr(arguments.tolerance)]
            return launch([*words, *flags], lines.ranks, config)
    print_stacks_on_crash()
    outcomes, is_printer = run(lines, arguments)
    if is_printer:
        how = f"within {arguments.tolerance:g}" if arguments.tolerance else "bit for bit"
        print_plain(describe_outcomes(outcomes, how))
    return EXIT_FAILED if outcomes[0].step and is_printer else 0


def run(lines: BisectLines, arguments: BisectArguments) -> tuple[list[Outcome], bool]:
    """What every rank found, and whether this is the rank that says so."""
    left = lines.left
    set_up_log(level=left.debug.log_level)
    mesh = plan_run_mesh(left, int(os.environ.get("WORLD_SIZE", "1")))
    device, limit = use_device(left.debug.device), left.parallelism.timeout_seconds
    with (
        deterministic_kernels(left.debug.deterministic),
        joined_groups(mesh, device, timeout_seconds=limit, shares_gpus=left.debug.share_gpus) as groups,
    ):
        outcome = bisect(left, lines.right, groups, steps=arguments.steps, tolerance=arguments.tolerance)
        outcomes: list[Outcome] = groups.all_gather_object(outcome)
        groups.barrier()
        return outcomes, groups.rank == 0

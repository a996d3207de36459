"""`monograph tune`: find the fastest settings of the custom kernels of a step, for all later runs on such a GPU."""

from collections.abc import Sequence

from rich.table import Table

from monograph.commands.checks import only_gpus_are_tuned
from monograph.commands.precompile import capture_as, find_stages
from monograph.execute.custom_kernels import KernelCall
from monograph.execute.device import deterministic_kernels, use_device
from monograph.execute.tune_kernels import describe_settings
from monograph.execute.tuned_kernels import tune_kernels
from monograph.kernels.tuned_file import TunedKernel, find_folder, find_gpu_kind
from monograph.log import set_up_log
from monograph.system.console import make_console
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh

_WIDTH = 120
"""Of the table, also where no terminal says how wide it is."""


def tune(config: TrainerConfig, *, ranks: int) -> int:
    """Capture the step of every stage, tune what is not known yet, and show it."""
    set_up_log(level=config.debug.log_level)
    device = use_device(config.debug.device)
    kind = find_gpu_kind(device)
    if kind is None:
        raise only_gpus_are_tuned(device.type)
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    calls: dict[KernelCall, None] = {}
    with deterministic_kernels(config.debug.deterministic):
        for stage, first, _ in find_stages(config, mesh):
            captured = capture_as(first, config, mesh, device, is_compiled=True, stage=stage)
            calls |= dict.fromkeys(captured.tunable)
        found = tune_kernels(calls, device)
    console = make_console(soft_wrap=False, min_width=_WIDTH)
    console.print(make_table(found) if found else "everything that this step launches was tuned before")
    console.print(f"{kind.name}: {find_folder() / kind.file_name}", soft_wrap=True)
    return 0


def make_table(tuned: Sequence[TunedKernel]) -> Table:
    """One line a kernel and its sizes; what gained most first."""
    table = Table(title="settings with equal bits, ms a call", title_justify="left")
    for head in ("kernel", "sizes", "default ms", "best ms", "faster", "settings"):
        table.add_column(head, justify="right" if head in ("default ms", "best ms", "faster") else "left")
    for each in sorted(tuned, key=lambda each: each.best_ms - each.default_ms):
        table.add_row(
            each.key.kernel,
            " x ".join(map(str, each.key.sizes)),
            f"{each.default_ms:.4f}",
            f"{each.best_ms:.4f}",
            f"{100 * (1 - each.best_ms / each.default_ms):.1f} %",
            describe_settings(each.settings) if each.best_ms < each.default_ms else "default",
        )
    return table

"""`monograph verify`, as one of the ranks runs it (monograph/launch/local.py starts several), or without any ranks."""

from typing import Any

from monograph.crash import print_stacks_on_crash
from monograph.system.console import print_plain
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.verify.run import verify_command
from monograph.verify.simulate import first
from monograph.verify.simulate.command import simulate_command


def simulate_ranks(config: TrainerConfig, *, ranks: int, simulate_first: bool, **others: Any) -> None:
    """The same mesh in this process, before ranks compute it: in fp64, from random weights and buffers."""
    if simulate_first:
        line = first.simulate_first(config, plan_run_mesh(config, ranks), instead="--simulate_first false starts ranks")
        print_plain(line)


def verify(config: TrainerConfig, *, ranks: int, simulate: bool, each_pass: bool, **others: Any) -> int:
    """`monograph verify`."""
    print_stacks_on_crash()
    if simulate:
        return simulate_command(config, ranks=ranks, each_pass=each_pass)
    return verify_command(config)

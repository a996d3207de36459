"""`monograph verify`, as one of the ranks runs it (monograph/launch/local.py starts several), or without any ranks."""

from monograph.crash import print_stacks_on_crash
from monograph.train.config import TrainerConfig
from monograph.verify.run import verify_command
from monograph.verify.simulate.command import simulate_command


def verify(config: TrainerConfig, *, ranks: int, words: list[str], simulate: bool, each_pass: bool) -> int:
    """`monograph verify`."""
    print_stacks_on_crash()
    if simulate:
        return simulate_command(config, ranks=ranks, each_pass=each_pass)
    return verify_command(config)

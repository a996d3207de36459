"""`monograph verify`, as one of the ranks runs it; monograph/launch/local.py starts several."""

from monograph.crash import print_stacks_on_crash
from monograph.train.config import TrainerConfig
from monograph.verify.run import verify_command


def verify(config: TrainerConfig, *, ranks: int, words: list[str]) -> int:
    """`monograph verify`."""
    print_stacks_on_crash()
    return verify_command(config)

"""What all ranks do together right before the first step."""

from monograph.log import get_log
from monograph.parallel.connect import connect, describe_connected
from monograph.parallel.groups import Groups
from monograph.train.startup import Startup
from monograph.train.step import Step

log = get_log("groups")


def start_training(groups: Groups, step: Step, startup: Startup) -> None:
    """Wait until every rank is ready, then make the communicators of the step, so that none is made inside of it."""
    groups.start_training()
    with startup.phase("communicators") if groups.is_nccl else startup.phase("set-up"):
        connected = connect(groups, step.find_groups())
    if connected:
        log.info("%s", describe_connected(connected))

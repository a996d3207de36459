"""Settings of per-step fault tolerance, and what cannot be combined with it. Loads without torch."""

import importlib.util
import math
from dataclasses import dataclass
from typing import Any

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError, describe_install
from monograph.parallel.mesh import Mesh


@dataclass(kw_only=True, slots=True)
class FaultToleranceConfig(Configurable.Config):
    """Replicas of the whole run, joined by torchft's quorum at every step (extra: ft). Losing one stops none of them.

    Each replica is a job with a mesh, a dump_folder and checkpoints of its own; all share every global batch.
    """

    replicas: int = 0
    """How many replicas are started; 0 switches this off."""
    replica: int = 0
    """Which of them this job is, counted from 0."""
    min_replicas: int = 1
    """An update takes at least so many; while there are fewer, the others wait."""
    lighthouse: str = ""
    """Address of torchft's lighthouse, which finds the quorum: http://HOST:29510."""
    timeout_seconds: float = 60.0
    """How long a replica waits inside a step for another one, before the step is made again without it. Must be longer
    than replicas may differ in the time of a step."""
    quorum_seconds: float = 1800.0
    """How long a replica waits between two steps for min_replicas of them, before it ends with an error."""

    def check(self) -> None:
        if not self.replicas:
            return
        if not 1 <= self.replicas <= 10_000:
            raise ConfigError(f"replicas is {self.replicas}", why="it must be 0 (off) to 10000")
        if not 0 <= self.replica < self.replicas:
            raise ConfigError(f"replica is {self.replica} of replicas {self.replicas}", why="they are counted from 0")
        if not 1 <= self.min_replicas <= self.replicas:
            raise ConfigError(
                f"min_replicas is {self.min_replicas} and replicas is {self.replicas}",
                why="an update takes at least 1 and at most all of them",
            )
        if not self.lighthouse.startswith("http://"):
            raise ConfigError(
                f"lighthouse is {self.lighthouse!r} while replicas is {self.replicas}",
                why="replicas find each other through a lighthouse",
                do="start torchft_lighthouse, and --fault_tolerance.lighthouse http://HOST:29510",
            )
        for name in ("timeout_seconds", "quorum_seconds"):
            check_range(self, name, 0.1, 1e6, why="it is a time to wait")


def check_replica_limits(config: Any) -> None:
    """Refuse what replicas that come and go cannot do."""
    replicas = config.fault_tolerance.replicas
    if not replicas:
        return
    if config.parallelism.pipeline_parallel_degree > 1:
        raise ConfigError(
            f"fault_tolerance.replicas is {replicas} and parallelism.pipeline_parallel_degree is "
            f"{config.parallelism.pipeline_parallel_degree}",
            why="a pipeline's schedule has a fixed number of micro-batches, and with replicas it changes",
            do="--parallelism.pipeline_parallel_degree 1",
        )
    if config.training.global_batch_size == -1:
        raise ConfigError(
            f"fault_tolerance.replicas is {replicas} and training.global_batch_size is -1",
            why="the global batch would change with the number of replicas",
            do="--training.global_batch_size N",
        )
    if config.dataloader.has_mixture() and config.dataloader.source_loss_interval:
        raise ConfigError(
            f"fault_tolerance.replicas is {replicas} and dataloader.source_loss_interval is "
            f"{config.dataloader.source_loss_interval}",
            why="a replica measures the losses of its own samples only",
            do="--dataloader.source_loss_interval 0",
        )


def check_torchft() -> None:
    """Refuse a run with replicas where torchft is missing."""
    if importlib.util.find_spec("torchft") is None:
        raise ConfigError(
            "fault_tolerance.replicas is on but the package torchft is not installed",
            why="it is an optional extra",
            do=f"{describe_install('ft', 'torchft')}, or --fault_tolerance.replicas 0",
        )


def check_division(config: Any, mesh: Mesh) -> None:
    """Refuse a global batch that some number of replicas could not share."""
    settings, training = config.fault_tolerance, config.training
    numbers = range(settings.min_replicas, settings.replicas + 1)
    local = training.local_batch_size * mesh.data_parts
    unfit = [number for number in numbers if training.global_batch_size % (number * local)]
    if settings.replicas and unfit:
        least = local * math.lcm(*numbers)
        nearest = max(1, round(training.global_batch_size / least)) * least
        raise ConfigError(
            f"training.global_batch_size {training.global_batch_size} cannot be shared by {unfit[0]} replicas of "
            f"{mesh.data_parts} data-parallel ranks with training.local_batch_size {training.local_batch_size}",
            why=f"every number of replicas from {settings.min_replicas} (fault_tolerance.min_replicas) to "
            f"{settings.replicas} must divide it into whole micro-batches: it must be a multiple of {least}",
            do=f"--training.global_batch_size {nearest}, or a larger fault_tolerance.min_replicas",
        )

"""What a pass is: one small change to the graph, with its options, its reasons to be skipped and its promise.

A pass decides first and writes afterwards, needs neither a device nor other ranks, and leaves checking, timing and
recording to the runner.
"""

import re
from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

from monograph.config.configurable import Configurable
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.passes.options import PassOptions


class Property(StrEnum):
    """What a graph has once a pass was there; others may need it."""

    SHARED_GATHERS = "one all_gather per parameter"
    SAVED_PLAN = "a plan of saved activations"
    RECOMPUTE = "backward that recomputes what was not saved"
    CHUNKS = "modules split into chunks"
    BUCKETS = "one all_gather and one reduce_scatter per block"
    REGIONS = "marked regions to compile"


class Pass(Configurable, ABC):
    """One change to the graph. The docstring shows it: what it does, Before, After, Why."""

    Config: ClassVar[Any] = PassOptions
    requires: ClassVar[tuple[Property, ...]] = ()
    """Skipped, with a reason, when one of these is missing."""
    provides: ClassVar[tuple[Property, ...]] = ()
    bitwise: ClassVar[bool] = True
    """Whether the step computes exactly the same numbers afterwards."""
    is_low_precision: ClassVar[bool] = False
    """Whether it computes in a dtype narrower than the run's own, which is more than another rounding."""
    before: ClassVar[tuple[str, ...]] = ()
    """Of a pass in `passes.extra`: the names of passes it runs before, ours or other extra ones."""
    after: ClassVar[tuple[str, ...]] = ()
    """Of a pass in `passes.extra`: those it runs after; with neither it runs just before the compile passes."""

    def __init__(self, config: Any = None, *, off: str = "", is_asked: bool = False) -> None:
        self.config = self.Config() if config is None else config
        self.off = off
        """Why the configuration leaves this pass out; empty when it runs."""
        self.is_asked = is_asked
        """Whether it was asked for by name or by its options: then only something impossible may stop it."""

    @classmethod
    def name(cls) -> str:
        """How flags and records call it: BucketCollectives is bucket_collectives."""
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def skip(self, facts: Facts) -> str:
        """Why there is nothing to do on this mesh or with these options; empty when there is."""
        return ""

    def reads_machine(self, facts: Facts) -> bool:
        """Whether what this pass decides depends on `facts.machine`: an artifact then fits that machine only."""
        return False

    @abstractmethod
    def run(self, graph: StepGraph, facts: Facts) -> str:
        """Change the graph; say in a few words what was done. Running twice changes nothing more."""

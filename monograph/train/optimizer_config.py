"""Settings of optimizers: what every one has, and AdamW's. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from monograph.config.configurable import Configurable
from monograph.config.ranges import FP32_MAX, FP32_TINY, check_range
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class OptimizerConfig(Configurable.Config):
    """What the trainer knows of every optimizer; your own is one flag away: --optimizer package.module:Class."""

    owner: ClassVar[str] = "monograph.train.optimizer:Optimizer"
    is_base: ClassVar[bool] = True
    has_compiled_form: ClassVar[bool] = False
    """Whether its component defines `compile`, so that compile.components may have optimizer."""
    lr: float = 3e-4
    """Peak learning rate."""

    @property
    def is_single_pass(self) -> bool:
        """Whether it reads narrow gradients and writes the cast copies of weights; passes that need that ask here."""
        return False

    def plan(self, numerics: str) -> Self:
        """This config with everything decided that it leaves to `compile.numerics`."""
        return self

    def describe(self) -> str:
        """Its class, for messages."""
        return f"optimizer {type(self).__qualname__}"

    def check(self) -> None:
        check_range(self, "lr", FP32_TINY, 1e30, why="an update moves every weight by about lr")


@dataclass(kw_only=True, slots=True)
class AdamWConfig(OptimizerConfig):
    """AdamW; weight decay leaves one-dimensional parameters (norms, biases) alone."""

    owner: ClassVar[str] = "monograph.train.adamw:AdamW"
    has_compiled_form: ClassVar[bool] = True
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay."""
    implementation: Literal["auto", "fused", "foreach", "for_loop", "single_pass"] = "auto"
    """Which of torch's loops to use, or single_pass: a custom kernel that reads and writes everything once. auto:
    single_pass with compile.numerics fast or float8, else torch's fused loop where there is one."""

    @property
    def is_single_pass(self) -> bool:
        """Whether one kernel reads and writes everything once."""
        return self.implementation == "single_pass"

    def plan(self, numerics: str) -> Self:
        """`auto` decided: single_pass with fast numerics, else one of torch's loops."""
        if numerics != "exact" and self.implementation == "auto":
            return self.replace(implementation="single_pass")
        return self

    def describe(self) -> str:
        """Which of its loops it is."""
        return f"optimizer.implementation {self.implementation}"

    def check(self) -> None:
        check_range(self, "lr", FP32_TINY, 1e30, why="AdamW moves every weight by about lr in one step")
        check_range(self, "eps", FP32_TINY, FP32_MAX, why="AdamW divides by it in float32 where a gradient is 0")
        if self.weight_decay < 0 or self.lr * self.weight_decay > 1:
            raise ConfigError(
                f"weight_decay is {self.weight_decay} and lr is {self.lr}",
                why="a step multiplies weights by 1 - lr * weight_decay, which must lie in [0, 1]",
                do=f"write a weight_decay between 0 and {1 / self.lr:.3g}",
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it must lie in [0, 1)")

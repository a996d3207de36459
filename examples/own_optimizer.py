"""An optimizer and a learning rate schedule of your own, used by flags alone.

monograph train llama3_debugmodel --optimizer examples.own_optimizer:Lion.Config --optimizer.lr 3e-4
monograph train llama3_debugmodel --lr_scheduler examples.own_optimizer:Triangle
monograph train llama3_debugmodel --optimizer examples.own_optimizer:Lion.Config --help
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from monograph.errors import ConfigError
from monograph.train.lr_scheduler import LrScheduler
from monograph.train.optimizer import Optimizer


class Lion(Optimizer):
    """Sign of an interpolated momentum: one moment where AdamW has two, and every weight moves by lr.

    The base class makes the state, clips, refuses an update that is not finite, and saves and resumes on any mesh.
    """

    state_names = ("momentum",)
    elementwise = True

    @dataclass(kw_only=True, slots=True)
    class Config(Optimizer.Config):
        """Lion; weight decay leaves norms and biases alone."""

        beta1: float = 0.9
        """How much of the momentum is in an update."""
        beta2: float = 0.99
        """Decay of the momentum."""
        weight_decay: float = 0.1
        """Decoupled weight decay."""

        def check(self) -> None:
            Optimizer.Config.check(self)
            for name in ("beta1", "beta2"):
                if not 0 <= getattr(self, name) < 1:
                    raise ConfigError(f"{name} is {getattr(self, name)}", why="it must lie in [0, 1)")

    def update(self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], lr: float) -> None:
        """Change one parameter and its momentum in place."""
        momentum, config = state["momentum"], self.config
        if self.is_decayed(parameter):
            parameter.mul_(1 - lr * config.weight_decay)
        parameter.sub_(momentum.lerp(gradient, 1 - config.beta1).sign_(), alpha=lr)
        momentum.lerp_(gradient, 1 - config.beta2)


class Triangle(LrScheduler):
    """Up to the peak in the middle of the run, and down again."""

    @dataclass(kw_only=True, slots=True)
    class Config(LrScheduler.Config):
        """A triangle."""

        floor: float = 0.1
        """The rate at both ends, as a fraction of the peak."""

    def factor(self, step: int) -> float:
        """The rate of update number `step`, counted from 1, as a fraction of its peak."""
        distance = abs(2 * step / self.steps - 1)
        return 1 - (1 - self.config.floor) * distance

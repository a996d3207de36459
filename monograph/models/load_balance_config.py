"""The config of the experts' load balancing. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError

BalanceScope = Literal["sequence", "micro_batch", "global"]


@dataclass(kw_only=True, slots=True)
class LoadBalanceConfig(Configurable.Config):
    """Auxiliary losses that keep the experts' load even: they add gradients at the router's scores.

    With f_i the share of expert i in the choices of a batch, relative to an even share, and P_i the mean of its
    normalized score over the same tokens, the load-balancing loss of a layer is the sum of f_i * P_i over the experts.
    """

    owner: ClassVar[str] = "monograph.models.load_balance:LoadBalance"
    coefficient: float = 0.0
    """Weight of the load-balancing loss of every MoE layer; 0 leaves it out."""
    scope: BalanceScope = "sequence"
    """Tokens that f counts: each sequence by itself (the only scope that does not depend on batch and mesh), one rank's
    micro-batch, or the micro-batches of all data-parallel ranks together."""
    times_top_k: bool = False
    """Multiply f by top_k: an even load costs the coefficient times top_k (Hugging Face's formula: Qwen3), instead of
    the coefficient (DeepSeek's and Megatron's)."""
    mean_of_layers: bool = False
    """Divide the load-balancing loss by the number of MoE layers: one coefficient for all of them together (Hugging
    Face's formula: Qwen3, gpt_oss), instead of one for each."""
    group_coefficient: float = 0.0
    """Weight of the same loss over the router's groups of experts (DeepSeek-V2's device-level balance)."""
    group_traffic_coefficient: float = 0.0
    """Weight of the same loss over the tokens sent to each group, several experts of a group counted once
    (DeepSeek-V2's communication balance)."""
    z_coefficient: float = 0.0
    """Weight of the router z-loss, the mean square of the log-sum-exp of a token's gate logits; 0 leaves it out."""

    @property
    def needs_counts(self) -> bool:
        """Whether any loss depends on how many tokens each expert or group got."""
        return bool(self.coefficient or self.group_coefficient or self.group_traffic_coefficient)

    @property
    def is_on(self) -> bool:
        """Whether any auxiliary loss is added."""
        return self.needs_counts or bool(self.z_coefficient)

    def check(self) -> None:
        for name in ("coefficient", "group_coefficient", "group_traffic_coefficient", "z_coefficient"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}",
                    why="a negative weight rewards uneven load",
                    do="write 0 or more",
                )
        if self.scope != "sequence" and not self.needs_counts:
            raise ConfigError(
                f"scope is {self.scope} and every balance coefficient is 0",
                why="without a coefficient there is no loss whose scope could matter",
                do="write a coefficient, for example 0.001",
            )
        for name in ("times_top_k", "mean_of_layers"):
            if getattr(self, name) and not self.coefficient:
                raise ConfigError(
                    f"{name} is on and coefficient is 0",
                    why="it multiplies the load-balancing loss, which is off",
                    do="write a coefficient, for example 0.001",
                )

    def check_groups(self, n_groups: int) -> None:
        """Refuse losses over groups that the router does not have."""
        for name in ("group_coefficient", "group_traffic_coefficient"):
            if getattr(self, name) and n_groups == 1:
                raise ConfigError(
                    f"balance.{name} is {getattr(self, name)} and router.n_groups is 1",
                    why="with one group there is nothing to balance between groups",
                    do=f"balance.{name} 0, or more groups",
                )

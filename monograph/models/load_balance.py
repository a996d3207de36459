"""Load balancing of experts: auxiliary losses during a step, and selection biases that move between updates.

An MoE layer counts what its router chose, per sequence. The losses are computed once for all layers, after the last
block, so that the counts of all layers cross the mesh in one all_reduce. Gradients enter at the router's scores,
through the score sums; the counts themselves have none.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from monograph.annotate import Role, annotate_role
from monograph.config.configurable import Configurable
from monograph.models.config import MoeConfig, RouterConfig
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan
from monograph.models.router import Choice, Router


class RouterStats(NamedTuple):
    """What one MoE layer's router did with one call's tokens, or with this rank's slice of them."""

    load: Tensor
    """int64 [experts]: rows sent to each expert."""
    counts: Tensor | None = None
    """int64 [sequences, experts (+ groups)]: choices of each expert; tokens of each group where balanced."""
    score_sums: Tensor | None = None
    """fp32 [sequences, experts]: each expert's normalized score, summed over tokens. Carries the gradient."""
    z_sums: Tensor | None = None
    """fp32 [sequences]: the squared log-sum-exp of the gate logits, summed over tokens. Carries a gradient."""


class LoadBalance(nn.Module, Configurable):
    """The auxiliary losses of all MoE layers."""

    Config = LoadBalanceConfig

    def __init__(self, config: LoadBalanceConfig, *, router: RouterConfig, n_experts: int, n_layers: int = 1) -> None:
        super().__init__()
        self.config, self.router, self.n_experts, self.n_layers = config, router, n_experts, n_layers
        self.sum_counts: Callable[[Tensor], Tensor] = keep_local_counts
        """Totals of the counts over the ranks whose tokens belong to one statistic; parallelism replaces it."""
        self.sequence_parts = 1
        """Ranks that divide a sequence among themselves; parallelism sets it."""

    def plan_parallel(self) -> ParallelPlan:
        """Counts of ranks that hold tokens of one statistic are summed."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.COUNT_REDUCTION),))

    @property
    def coefficients(self) -> dict[str, float]:
        """The weight of every loss that is on, by the name of its metric."""
        config = self.config
        found = {
            "load_balancing_loss": config.coefficient,
            "group_balancing_loss": config.group_coefficient,
            "group_traffic_loss": config.group_traffic_coefficient,
            "router_z_loss": config.z_coefficient,
        }
        return {name: weight for name, weight in found.items() if weight}

    def forward(self, stats: Sequence[RouterStats | None], seq_len: int, sequences: Tensor) -> dict[str, Tensor]:
        """This call's share of every loss, without its coefficient: name -> fp32 [MoE layers].

        `seq_len` counts the tokens that a rank reads of a sequence; `sequences` counts those of the whole update.
        Summed over micro-batches and ranks the shares are means over sequences. Layers without
        statistics are on another pipeline stage, and have the share 0 here.
        """
        present = [each for each in stats if each is not None]
        if not present:
            return {name: torch.zeros(len(stats), device=sequences.device) for name in self.coefficients}
        losses = self.compute_shares(present, seq_len, sequences)
        if len(present) == len(stats):
            return losses
        first = next(number for number, each in enumerate(stats) if each is not None)
        room = (first, len(stats) - first - len(present))  # layers of one stage follow each other
        return {name: torch.nn.functional.pad(value, room) for name, value in losses.items()}

    def compute_shares(self, stats: Sequence[RouterStats], seq_len: int, sequences: Tensor) -> dict[str, Tensor]:
        """The shares of these layers."""
        scale = (sequences.to(torch.float32) * (seq_len * self.sequence_parts)).reciprocal()
        losses: dict[str, Tensor] = {}
        if self.config.needs_counts:
            counts = torch.stack([each.counts for each in stats if each.counts is not None])
            scores = torch.stack([each.score_sums for each in stats if each.score_sums is not None])
            losses |= self.compute_balance(self.sum_counts(counts).to(torch.float32), scores * scale)
        if self.config.z_coefficient:
            z_sums = torch.stack([each.z_sums for each in stats if each.z_sums is not None])
            losses["router_z_loss"] = (z_sums * scale).sum(1)
        return losses

    def compute_balance(self, counts: Tensor, scores: Tensor) -> dict[str, Tensor]:
        """The losses that depend on counts [layers, sequences, experts (+ groups)], from scores [..., experts]."""
        router, n_experts = self.router, self.n_experts
        if self.config.scope != "sequence":
            counts = counts.sum(1, keepdim=True)
        chosen = counts[..., :n_experts]
        choices = chosen.sum(-1, keepdim=True)
        share = chosen * (n_experts / choices)
        losses = {}
        if self.config.coefficient:
            times = (router.top_k if self.config.times_top_k else 1) / (
                self.n_layers if self.config.mean_of_layers else 1
            )
            losses["load_balancing_loss"] = (share * scores).sum((1, 2)) * times
        if router.n_groups == 1:
            return losses
        group_scores = scores.unflatten(-1, (router.n_groups, -1)).sum(-1)
        if self.config.group_coefficient:
            group_share = share.unflatten(-1, (router.n_groups, -1)).mean(-1)
            losses["group_balancing_loss"] = (group_share * group_scores).sum((1, 2))
        if self.config.group_traffic_coefficient:
            traffic = counts[..., n_experts:] * (router.n_groups * router.top_k / router.top_groups / choices)
            losses["group_traffic_loss"] = (traffic * group_scores).sum((1, 2))
        return losses


def sum_weighted(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """What the losses of all layers add to the objective: a scalar."""
    first, *others = [losses[name].sum() * weight for name, weight in weights.items()]
    return sum(others, first)


def keep_local_counts(counts: Tensor) -> Tensor:
    """One device sees every token of a statistic."""
    return counts


def count_choices(choice: Choice, load: Tensor, config: MoeConfig, *, rows: int) -> RouterStats:
    """The statistics of a router's choice for `rows` sequences; only the load where nothing is balanced by a loss."""
    balance, router = config.balance, config.router
    if not (balance.is_on and torch.is_grad_enabled()):
        return RouterStats(load)
    n_experts = load.shape[0]
    counts = score_sums = z_sums = None
    with annotate_role(Role.ROUTER_STATS):
        if balance.needs_counts:
            counts = count_per_sequence(choice.experts, n_experts, rows)
            if balance.group_traffic_coefficient:
                groups = choice.experts // (n_experts // router.n_groups)
                counts = torch.cat([counts, count_once_per_token(groups, router.n_groups, rows)], dim=1)
            score_sums = normalize(choice.scores, router).unflatten(0, (rows, -1)).sum(1)
        if balance.z_coefficient:
            z_sums = choice.logits.logsumexp(-1).square().unflatten(0, (rows, -1)).sum(1)
    return RouterStats(load, counts, score_sums, z_sums)


def count_per_sequence(chosen: Tensor, n_kinds: int, rows: int) -> Tensor:
    """How often each number below `n_kinds` occurs in chosen [tokens, top_k]: int64 [sequences, kinds].

    By comparison, not by scattered adds: deterministic on every device.
    """
    return _one_hot(chosen, n_kinds).unflatten(0, (rows, -1)).sum((1, 2))


def count_once_per_token(chosen: Tensor, n_kinds: int, rows: int) -> Tensor:
    """The same with every number counted once per token."""
    return _one_hot(chosen, n_kinds).any(1).unflatten(0, (rows, -1)).sum(1)


def _one_hot(chosen: Tensor, n_kinds: int) -> Tensor:
    return chosen.unsqueeze(-1) == torch.arange(n_kinds, device=chosen.device)


def normalize(scores: Tensor, router: RouterConfig) -> Tensor:
    """Scores that sum to one over the experts; a softmax does already."""
    return scores if router.score == "softmax" else scores / scores.sum(-1, keepdim=True)


@torch.no_grad()
def update_expert_bias(model: nn.Module, load: Tensor, rate: float) -> None:
    """Move every selection bias by `rate` towards an even load, from the load [layers, experts] of the last update.

    The moves of a layer sum to zero, so biases do not drift together. A router whose gate is frozen keeps its biases.
    """
    routers = [module for module in model.modules() if isinstance(module, Router)]
    for router, row in zip(routers, load.unbind(), strict=True):
        if router.expert_bias is not None and rate and router.gate.weight.requires_grad:
            row = row.to(torch.float32)
            move = (row.mean() - row).sign()
            router.expert_bias.add_(move - move.mean(), alpha=rate)

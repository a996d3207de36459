"""The router: scores every expert for every token, and chooses. Always in fp32: a choice must not hang on rounding."""

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.models.config import ResidualSpec, RouterConfig
from monograph.models.linear import Linear


class Choice(NamedTuple):
    """Where each token goes."""

    experts: Tensor
    """int64 [tokens, top_k]."""
    weights: Tensor
    """fp32 [tokens, top_k]: how much each expert's answer counts."""
    scores: Tensor
    """fp32 [tokens, experts]: the scores they were chosen by, without the selection bias."""
    logits: Tensor
    """fp32 [tokens, experts]: the gate's output."""


class Router(nn.Module, Configurable):
    """Gate scores -> the best experts (within the best groups, where there are groups) and their weights.

    `expert_bias` steers the selection only: the weights come from the scores without it, so it has no gradient and
    does not disturb what is learned. It is moved between updates (models/load_balance.py).
    """

    Config: ClassVar[Any] = RouterConfig
    expert_bias: Tensor | None

    def __init__(self, config: RouterConfig, *, n_experts: int, residual: ResidualSpec) -> None:
        super().__init__()
        config.check_experts(n_experts)
        self.config, self.n_experts = config, n_experts
        self.gate: nn.Linear = Linear(residual.dim, n_experts, init_std=residual.init_std)
        self.register_buffer("expert_bias", torch.zeros(n_experts, dtype=torch.float32) if config.expert_bias else None)

    def reset(self) -> None:
        """No expert is preferred at first."""
        if self.expert_bias is not None:
            self.expert_bias.zero_()

    def forward(self, x: Tensor) -> Choice:
        """Choose for each row of x [tokens, dim]."""
        logits = self.score(x.float())
        scores = logits.sigmoid() if self.config.score == "sigmoid" else logits.softmax(dim=-1)
        experts = (
            self.deal(x.shape[0], x.device)
            if self.config.force_balance
            else self.select(self.find_standing(scores, logits).detach())
        )
        return Choice(experts, self.weigh(experts, scores, logits) * self.config.scale, scores, logits)

    def score(self, x: Tensor) -> Tensor:
        """The gate's logits for rows in fp32."""
        return F.linear(x, self.gate.weight.float())

    def find_standing(self, scores: Tensor, logits: Tensor) -> Tensor:
        """What experts are chosen by, before any selection bias: their scores."""
        return scores

    def weigh(self, experts: Tensor, scores: Tensor, logits: Tensor) -> Tensor:
        """How much the answer of each chosen expert counts, [tokens, top_k]."""
        weights = scores.gather(1, experts)
        return weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) if self.config.norm else weights

    def select(self, scores: Tensor) -> Tensor:
        """The experts with the best biased scores, [tokens, top_k]."""
        config = self.config
        if self.expert_bias is not None:
            scores = scores + self.expert_bias
        if config.n_groups > 1:
            groups = scores.unflatten(-1, (config.n_groups, -1))
            if config.group_score == "max":
                standing = groups.amax(dim=-1)
            else:
                standing = groups.topk(2, dim=-1).values.sum(dim=-1)
            best = standing.topk(config.top_groups, dim=-1).indices
            closed = torch.ones_like(standing, dtype=torch.bool).scatter(1, best, False)
            scores = groups.masked_fill(closed.unsqueeze(-1), float("-inf")).flatten(1)
        return scores.topk(config.top_k, dim=-1).indices

    def deal(self, tokens: int, device: torch.device) -> Tensor:
        """Experts in turn, whatever the scores: an even load for measuring speed."""
        turns = torch.arange(tokens * self.config.top_k, device=device)
        return (turns % self.n_experts).view(tokens, self.config.top_k)

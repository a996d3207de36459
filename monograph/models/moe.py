"""A mixture of experts in place of the feed-forward layer."""

from typing import Any, ClassVar

from torch import Tensor, nn

from monograph.annotate import annotate
from monograph.config.configurable import Configurable
from monograph.models.config import FeedForwardConfig, MoeConfig, ResidualSpec
from monograph.models.dispatch import Dispatch, LocalDispatch
from monograph.models.load_balance import RouterStats, count_choices
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan
from monograph.models.router import Choice


class Moe(nn.Module, Configurable):
    """Router -> dispatch -> experts -> combine, plus the experts that see every token.

    Returns the router's statistics with the result, instead of counting here: a forward that is recomputed or that
    evaluates must not count.
    """

    Config: ClassVar[Any] = MoeConfig

    def __init__(self, config: MoeConfig, *, residual: ResidualSpec) -> None:
        super().__init__()
        n, hidden = config.n_experts, config.hidden_dim
        self.config, self.n_experts = config, n
        self.router = config.router.build(n_experts=n, residual=residual)
        self.experts = config.experts.build(
            n_experts=n, hidden_dim=hidden, residual=residual, used_share=config.router.top_k / n
        )
        self.shared_experts = (
            FeedForwardConfig(hidden_dim=hidden * config.n_shared_experts).build(residual=residual)
            if config.n_shared_experts
            else None
        )
        self.kernels = residual.kernels
        self.dispatch: Dispatch = LocalDispatch(kernels=residual.kernels)

    def plan_parallel(self) -> ParallelPlan:
        """Tokens are sent to the ranks of their experts by all_to_all."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.EXPERT_EXCHANGE),))

    def forward(self, x: Tensor) -> tuple[Tensor, RouterStats]:
        """The layer's output for x [batch, sequence, dim], and what its router chose."""
        tokens = x.flatten(0, 1)
        choice = self.router(tokens)
        answers, load = self.run_experts(tokens, choice)
        out = answers.view_as(x)
        if self.shared_experts is not None:
            out = out + self.shared_experts(x)
        return out, count_choices(choice, load, self.config, rows=x.shape[0])

    def run_experts(self, tokens: Tensor, choice: Choice) -> tuple[Tensor, Tensor]:
        """What the chosen experts answer to tokens [tokens, dim], weighted and summed; and the rows of each expert."""
        routed = self.dispatch.dispatch(tokens, choice.experts, self.n_experts)
        with annotate("compute"):
            answers = self.experts(routed.rows, routed.ends)
        return self.dispatch.combine(answers, choice.weights, routed), routed.load

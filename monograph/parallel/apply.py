"""Turn a whole model into one rank's part of a parallel one. Model code does not change; parts are put in its place."""

from torch import Tensor, nn

from monograph.axes import Group
from monograph.models.decoder import Decoder
from monograph.models.load_balance import LoadBalance
from monograph.parallel.expert import CountReduction, ExchangeDispatch
from monograph.parallel.mesh import Mesh
from monograph.parallel.plan import Plan
from monograph.parallel.tensor import VocabEmbedding, VocabLoss, add_input_boundary, add_output_boundary


def parallelize(model: Decoder, plan: Plan, mesh: Mesh, coords: Tensor) -> None:
    """Put the boundaries, the vocabulary-parallel layers and the dispatchers in place.

    Only what an axis needs: without tensor parallelism there is no vocabulary to mask, and without expert
    parallelism tokens stay on the device, where routing needs no host copy (docs/decisions/0002).
    """
    if mesh.tp > 1:
        model.embedding = VocabEmbedding(model.embedding.get_parameter("weight"), coords)
        model.head.loss = VocabLoss(model.head.loss, coords, model.config.vocab_size)
        for path, module in model.named_modules():
            add_boundary_collectives(path, module, plan, mesh)
    if mesh.ep * mesh.etp > 1:
        for block in model.blocks():
            if block.moe is not None:
                block.moe.dispatch = ExchangeDispatch(ep=mesh.ep, etp=mesh.etp, kernels=model.config.kernels)
    if model.load_balance is not None:
        reduce_counts(model.load_balance, mesh)


def reduce_counts(balance: LoadBalance, mesh: Mesh) -> None:
    """Sum the router's counts over the ranks that hold slices of the same sequences, or over all for scope `global`."""
    group = Group.WORLD if balance.config.scope == "global" else Group.TP
    if mesh.group_size(group) > 1:
        balance.sum_counts = CountReduction(group)


def add_boundary_collectives(path: str, module: nn.Module, plan: Plan, mesh: Mesh) -> None:
    """The collectives that the plan wants where the stream enters and leaves this module."""
    rule = plan.rule_of(path)
    if rule is None:
        return
    if rule.on_input is not None:
        add_input_boundary(module, rule.on_input, mesh.tp)
    if rule.on_output is not None:
        add_output_boundary(module, rule.on_output, mesh.tp)

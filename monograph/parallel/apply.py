"""Turn a whole model into one rank's part of a parallel one. Model code does not change; parts are put in its place."""

from collections.abc import Callable

from torch import Tensor, nn

from monograph.axes import Group
from monograph.models.attention_core import AttentionCore
from monograph.models.latent_attention import LatentAttention
from monograph.models.load_balance import LoadBalance
from monograph.models.model import Model
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan
from monograph.parallel.context_all_gather import AllGatherAttention
from monograph.parallel.context_latent import HeadSizes, LatentGatherAttention
from monograph.parallel.context_ulysses import UlyssesAttention
from monograph.parallel.expert import CountReduction, ExchangeDispatch
from monograph.parallel.mesh import Mesh
from monograph.parallel.numbered_heads import FirstHead
from monograph.parallel.random_positions import ShardedRowStarts
from monograph.parallel.tensor import VocabEmbedding, VocabLoss, add_input_boundary, add_output_boundary


def parallelize(model: Model, plan: ParallelPlan, mesh: Mesh, coords: Tensor) -> None:
    """Put the boundaries, the vocabulary-parallel layers and the dispatchers in place.

    Only what an axis needs: without tensor parallelism there is no vocabulary to mask, and without expert
    parallelism tokens stay on the device, where routing needs no host copy (docs/decisions/0002).
    """
    for path, module in list(model.named_modules()):
        rule = plan.rule_of(path)
        if rule is not None and rule.form is not None:
            FORMS[rule.form](model, path, module, mesh, coords)
    if mesh.tp > 1:
        for path, module in model.named_modules():
            rule = plan.rule_of(path)
            if rule is not None:
                add_boundary_collectives(module, rule, mesh)


def add_boundary_collectives(module: nn.Module, rule: ModuleRule, mesh: Mesh) -> None:
    """The collectives that a rule wants where the stream enters and leaves a module."""
    if rule.on_input is not None:
        add_input_boundary(module, rule.on_input, mesh.tp)
    if rule.on_output is not None:
        add_output_boundary(module, rule.on_output, mesh.tp)


def split_embedding(model: Model, path: str, module: nn.Module, mesh: Mesh, coords: Tensor) -> None:
    """Every tensor-parallel rank looks up its rows of the vocabulary."""
    if mesh.tp > 1:
        parent, _, name = path.rpartition(".")
        scales = getattr(module, "scales", {})  # an embedding of torch's own has none
        built = VocabEmbedding(module.get_parameter("weight"), coords, scales)
        setattr(model.get_submodule(parent), name, built)


def split_loss(_model: Model, _path: str, module: nn.Module, mesh: Mesh, coords: Tensor) -> None:
    """Logits stay where their columns of the vocabulary are."""
    if mesh.tp > 1:
        vocab_size = module.get_parameter("output.weight").shape[0]
        module.loss = VocabLoss(module.loss, coords, vocab_size)  # type: ignore[arg-type]


def exchange_tokens(_model: Model, _path: str, module: nn.Module, mesh: Mesh, _coords: Tensor) -> None:
    """Send tokens to the ranks of their experts by all_to_all."""
    if mesh.ep * mesh.etp > 1:
        dispatch = ExchangeDispatch(ep=mesh.ep, etp=mesh.etp, kernels=module.kernels)  # type: ignore[arg-type]
        module.dispatch = dispatch  # type: ignore[assignment]


def reduce_counts(_model: Model, _path: str, balance: nn.Module, mesh: Mesh, _coords: Tensor) -> None:
    """Sum the router's counts over ranks with slices of the same sequences, or over all data for scope `global`."""
    assert isinstance(balance, LoadBalance)
    balance.sequence_parts = mesh.cp
    group = Group.STAGE if balance.config.scope == "global" else Group.SEQUENCE
    if mesh.group_size(group) > 1:
        balance.sum_counts = CountReduction(group)


def share_sequences(model: Model, path: str, module: nn.Module, mesh: Mesh, coords: Tensor) -> None:
    """Attention over whole sequences, of which every context-parallel rank has a part."""
    if mesh.cp > 1:
        assert isinstance(module, AttentionCore)
        parent, _, name = path.rpartition(".")
        is_ulysses = mesh.cp_method == "ulysses"
        built = UlyssesAttention(module, mesh.cp, coords) if is_ulysses else AllGatherAttention(module, mesh.cp)
        setattr(model.get_submodule(parent), name, built)


def share_latents(_model: Model, _path: str, module: nn.Module, mesh: Mesh, _coords: Tensor) -> None:
    """Latent attention over the latents of whole sequences, where they are gathered instead of keys and values."""
    if mesh.cp > 1 and mesh.cp_gather == "latent":
        assert isinstance(module, LatentAttention)
        sizes = HeadSizes(module.config.qk_nope_head_dim, module.config.v_head_dim)
        module.attend_shared = LatentGatherAttention(module.attend, sizes, mesh.cp)


def shard_positions(_model: Model, _path: str, module: nn.Module, mesh: Mesh, coords: Tensor) -> None:
    """Draw the random numbers that one device draws for this rank's part of a value."""
    if mesh.tp > 1:
        module.find_starts = ShardedRowStarts(coords, mesh.tp, module.shared)  # type: ignore[arg-type]


def number_heads(_model: Model, _path: str, module: nn.Module, mesh: Mesh, coords: Tensor) -> None:
    """Functions of FlexAttention get the numbers that heads have in the whole model."""
    if mesh.tp > 1:
        module.find_first_head = FirstHead(coords)


FORMS: dict[ParallelForm, Callable[[Model, str, nn.Module, Mesh, Tensor], None]] = {
    ParallelForm.VOCAB_EMBEDDING: split_embedding,
    ParallelForm.VOCAB_LOSS: split_loss,
    ParallelForm.EXPERT_EXCHANGE: exchange_tokens,
    ParallelForm.COUNT_REDUCTION: reduce_counts,
    ParallelForm.RANDOM_POSITIONS: shard_positions,
    ParallelForm.SHARED_SEQUENCES: share_sequences,
    ParallelForm.SHARED_LATENTS: share_latents,
    ParallelForm.NUMBERED_HEADS: number_heads,
}

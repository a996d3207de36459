"""Is a parallel plan one that computes what one device computes? Checked when a model is built, before anything runs.

What can be seen in the plan and the parameters is refused here, with paths; what cannot is found by `verify`.
"""

from collections.abc import Iterator

from torch import nn

from monograph.axes import Axis
from monograph.errors import ConfigError, find_nearest
from monograph.models.model import Model
from monograph.models.parallel_plan import Boundary, ModuleRule, ParallelForm, ParallelPlan, join_path, matches
from monograph.parallel.mesh import Mesh

ROWS, COLUMNS = -1, -2
"""The dims of a weight [..., out, in] that a row-parallel and a column-parallel matmul shard."""


def check_plan(model: Model, plan: ParallelPlan, mesh: Mesh) -> None:
    """Refuse rules that match nothing, boundaries around modules that are not sharded, and half-sharded modules."""
    check_matches(model, plan)
    check_axes(model, plan, mesh)
    check_sequences(model, plan, mesh)
    for path, module in model.named_modules():
        rule = plan.rule_of(path)
        if rule is not None and rule.form is not ParallelForm.VOCAB_EMBEDDING:
            check_boundaries(path, module, rule, plan)
    check_biases(model, plan)


def check_matches(model: Model, plan: ParallelPlan) -> None:
    """Every rule is for something."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    paths = [path for path, _ in model.named_modules()]
    for kind, patterns, known in (
        ("parameter", [rule.pattern for rule in plan.parameters], names),
        ("module", [rule.pattern for rule in plan.modules], paths),
    ):
        exact = set(known)
        for pattern in patterns:
            if pattern not in exact and not any(matches(pattern, each) for each in known):
                near = find_nearest(pattern, known)
                raise ConfigError(
                    f"the parallel plan of {type(model).__qualname__} has a rule for {kind}s that match {pattern!r}",
                    why=f"the model has no such {kind}",
                    do=f"did you mean {near}?" if near else "remove the rule",
                )


def check_sequences(model: Model, plan: ParallelPlan, mesh: Mesh) -> None:
    """Tokens of other context-parallel ranks are seen by attention alone, and only if the plan says so."""
    if mesh.cp > 1 and not any(rule.form is ParallelForm.SHARED_SEQUENCES for rule in plan.modules):
        raise ConfigError(
            f"parallelism.context_parallel_degree is {mesh.cp}",
            why=f"the parallel plan of {type(model).__qualname__} has no module that attends to whole sequences, and "
            "every rank would compute with its own part alone",
            do="--parallelism.context_parallel_degree 1, or compute attention with mg.AttentionCore",
        )
    if mesh.cp > 1 and type(model).step_inputs is Model.step_inputs:
        raise ConfigError(
            f"parallelism.context_parallel_degree is {mesh.cp}",
            why=f"{type(model).__qualname__} does not say which positions the tokens of a rank have, and which keys "
            "they see",
            do="--parallelism.context_parallel_degree 1, or define step_inputs (docs/guides/own_model.md)",
        )


def check_axes(model: Model, plan: ParallelPlan, mesh: Mesh) -> None:
    """Without sharded parameters all tensor-parallel ranks would compute the same, and their gradients be summed."""
    if mesh.tp > 1 and not any(cut.axis is Axis.TP for rule in plan.parameters for cut in rule.cuts):
        raise ConfigError(
            f"parallelism.tensor_parallel_degree is {mesh.tp}",
            why=f"the parallel plan of {type(model).__qualname__} shards no parameter over tp",
            do="--parallelism.tensor_parallel_degree 1, or give modules of the model a plan_parallel()",
        )


def check_boundaries(path: str, module: nn.Module, rule: ModuleRule, plan: ParallelPlan) -> None:
    """What leaves a module by a reduce_scatter has to be a part of a sum on every rank."""
    if rule.on_output is not Boundary.SCATTER_SEQUENCE:
        return
    dims = {
        name: {cut.dim - parameter.ndim for cut in plan.cuts_of(join_path(path, name)) if cut.axis is Axis.TP}
        for name, parameter in module.named_parameters()
        if parameter.ndim >= 2
    }
    whole = [join_path(path, name) for name, cut in dims.items() if not cut and name not in rule.replicated]
    if whole:
        raise ConfigError(
            f"the parallel plan sums the output of {path} over tensor-parallel ranks, and {', '.join(whole)} is whole "
            "on every rank",
            why="all ranks would compute the same with it, and the sum would be that many times too large",
            do="shard it with shard_columns or shard_rows; or, if what reads it is sharded, name it in `replicated`",
        )
    for dim, what, other in ((ROWS, "rows", "shard_rows"), (COLUMNS, "columns", "shard_columns")):
        if not any(dim in cut for cut in dims.values()):
            raise ConfigError(
                f"the parallel plan gathers and scatters the sequence around {path}, and no weight in it is sharded by "
                f"{what}",
                why="a column-parallel matmul divides the channels among ranks, a row-parallel one adds their shares",
                do=f"{other} for one of {', '.join(join_path(path, name) for name in dims) or 'its weights'}",
            )


def check_biases(model: nn.Module, plan: ParallelPlan) -> None:
    """A bias is sharded like the output channels of its weight."""
    for name, weight, bias, weight_dims in find_biases(model):
        by_dim = {cut.dim - weight_dims for cut in plan.cuts_of(f"{name}{weight}") if cut.axis is Axis.TP}
        is_sharded = any(cut.axis is Axis.TP for cut in plan.cuts_of(f"{name}{bias}"))
        if COLUMNS in by_dim and not is_sharded:
            raise ConfigError(
                f"the parallel plan shards {name}{weight} by columns, and {name}{bias} is whole",
                why="every rank has some of the output channels, and a bias for all of them",
                do=f"shard_columns({f'{name}{bias}'!r})",
            )
        if ROWS in by_dim:
            raise ConfigError(
                f"the parallel plan shards {name}{weight} by rows, and it has a bias",
                why="every rank would add the bias to its part of the sum, and it would count once for each of them",
                do="add the bias after the module whose output is summed",
            )


def find_biases(model: nn.Module) -> Iterator[tuple[str, str, str, int]]:
    """Path with a dot, weight and bias of every module that has both, and how many dims the weight has."""
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if "weight" in own and "bias" in own and own["weight"].ndim >= 2:
            yield f"{path}.", "weight", "bias", own["weight"].ndim

"""What the best runs would gain from other rounding or low precision: shown, never chosen."""

from collections.abc import Sequence

from monograph.machine.device import Machine
from monograph.passes.options import CLASSES, Numerics
from monograph.plan.axes import Fixed, check_choice
from monograph.plan.choice import RunChoice, SaveMode
from monograph.plan.planned import PlannedRun
from monograph.train.config import TrainerConfig

_SAME_POLICY: dict[SaveMode, SaveMode] = {"selective": "min_cut"}
"""What classes beyond exact use in the place of a policy."""


def list_other_numerics(
    config: TrainerConfig, best: Sequence[PlannedRun], fixed: Fixed, machine: Machine
) -> list[tuple[RunChoice, PlannedRun]]:
    """The best run in every class of numerics that allows more than the recipe's, and with chunked experts; each with
    the run that it is made from."""
    found = []
    if "compile.numerics" not in fixed:
        classes = CLASSES[CLASSES.index(config.compile.numerics) + 1 :]
        named = [name for name in classes if name != "float8" or machine.has_float8]
        found += [(change_class(best[0].choice, name), best[0]) for name in named]
    with_experts = [run for run in best if run.choice.mesh.ep > 1 and run.choice.mesh.pp == 1]
    is_searched = config.compile.numerics != "exact" or "compile.expert_overlap.strategy" in fixed
    if with_experts and not is_searched and not with_experts[0].choice.overlap:
        found.append((with_experts[0].choice._replace(overlap=True), with_experts[0]))
    return [(choice, run) for choice, run in found if not check_choice(config, choice, run.pipeline)]


def change_class(choice: RunChoice, numerics: Numerics) -> RunChoice:
    """The same in another class of numerics."""
    return choice._replace(numerics=numerics, policy=_SAME_POLICY.get(choice.policy, choice.policy))

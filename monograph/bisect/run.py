"""Two configurations in one process, update by update on the same weights and data, until a number differs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from monograph.bisect.captures import compare_captures, compare_with_modules, find_restart
from monograph.bisect.differences import ValueDifference, find_difference, find_differences, find_missing
from monograph.bisect.pipeline import explain_pipeline
from monograph.bisect.replay import keep
from monograph.bisect.search import EXECUTION, Finding, blame_passes, find_base
from monograph.bisect.stages import CAPTURE, PassedGraph, build_stages
from monograph.execute.base import MeshStep
from monograph.execute.facts import make_facts
from monograph.execute.graph_step import GraphStep
from monograph.execute.pipeline.step import PipelineStep
from monograph.graph.inputs import StepInputs
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.passes.runner import build_passes
from monograph.plurals import counted
from monograph.run import build_source, build_step, make_example
from monograph.train.build_optimizer import build_optimizer
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.optimizer import Optimizer
from monograph.train.out_of_memory import memory_explained
from monograph.train.start import Start, load_start
from monograph.train.state import find_global_batch
from monograph.train.update import add_gradients, apply_update

log = get_log("bisect")
LESS = "fewer layers or a shorter sequence in both: --model.n_layers 2, --training.seq_len 1024"
"""What to do where memory runs out: both runs are held at once."""


@dataclass(frozen=True)
class Outcome:
    """Where two runs part, as one rank sees it."""

    steps: int
    """Updates that were compared."""
    rates: int = 0
    """Steps of which the learning rates were compared."""
    step: int = 0
    """The first update that differs on any rank; 0 when none does."""
    differences: dict[str, ValueDifference] = field(default_factory=dict)
    """What differs there on this rank, in the order in which it is computed."""
    findings: dict[str, Finding] = field(default_factory=dict)
    """Of each side ("A", "B", or "both"), what changed the number."""


@dataclass
class Side:
    """One of the two runs."""

    config: TrainerConfig
    step: MeshStep
    optimizer: Optimizer
    start: Start

    @property
    def lr(self) -> float:
        """Of every update that is compared: the peak, because a warmup's first rates hide what an optimizer does."""
        return self.config.optimizer.lr


def bisect(left: TrainerConfig, right: TrainerConfig, groups: Groups, *, steps: int, tolerance: float) -> Outcome:
    """Run both until a number differs, then find the pass, node or update that changed it."""
    with memory_explained(groups.device, {}, do=LESS):
        sides = {name: make_side(config, groups) for name, config in (("A", left), ("B", right))}
        try:
            return compare_updates(sides, groups, steps=steps, tolerance=tolerance)
        finally:
            for side in sides.values():
                side.step.close()


def make_side(config: TrainerConfig, groups: Groups) -> Side:
    """A step and its optimizer, with what the run starts from."""
    step = build_step(config, groups)
    optimizer = build_optimizer(config.plan_optimizer(), step)
    return Side(config, step, optimizer, load_start(config, step, optimizer, groups))


def compare_updates(sides: dict[str, Side], groups: Groups, *, steps: int, tolerance: float) -> Outcome:
    """Update by update: weights before, then loss and gradients, then weights after; at last the rates of all steps."""
    a, b = sides["A"], sides["B"]
    found = find_differences(collect_state(a), collect_state(b), tolerance)
    if groups.any_rank(bool(found)) or a.start.step != b.start.step:
        note = f"A starts after step {a.start.step}, B after step {b.start.step}"
        return Outcome(0, 0, 1, found, {"both": Finding("start", "the state before the first update", note)})
    _, parts = a.step.data_part
    training = a.config.training
    whole = find_global_batch(training, parts)
    with a.config.dataloader.build(
        tokenizer=a.config.tokenizer.build(),
        seq_len=training.seq_len,
        vocab_size=a.config.model.find_vocab_size(),
        seed=a.config.debug.seed,
        split="train",
        samples_per_update=whole,
    ).batches(
        a.start.cursor,
        local_batch_size=training.local_batch_size,
        global_batch_size=whole,
        part=a.step.data_part[0],
        parts=parts,
    ) as batches:
        for number in range(1, steps + 1):
            micro = [next(batches) for _ in range(whole // (training.local_batch_size * parts))]
            outcome = compare_update(sides, groups, micro, tolerance=tolerance)
            if outcome is not None:
                differences, findings = outcome
                return Outcome(number, 0, number, differences, findings)
            log.info("update %d of %d is equal", number, steps)
    return compare_rates(a, b, steps=steps)


def compare_rates(a: Side, b: Side, *, steps: int) -> Outcome:
    """The learning rates of all steps that both runs still have; `steps` updates were equal."""
    first, last = a.start.step + 1, min(side.config.training.steps for side in (a, b))
    for step in range(first, last + 1):
        left, right = (side.start.rates.lr(step) for side in (a, b))
        if left != right:
            found = find_difference(torch.tensor(left, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))
            assert found is not None
            schedule = Finding(
                "schedule",
                "the learning rate",
                f"the first {counted(steps, 'update')} are equal; the schedules differ afterwards",
            )
            return Outcome(steps, step - first, step, {"learning rate": found}, {"both": schedule})
    return Outcome(steps, max(0, last - first + 1))


def compare_update(
    sides: dict[str, Side], groups: Groups, micro: list[Batch], *, tolerance: float
) -> tuple[dict[str, ValueDifference], dict[str, Finding]] | None:
    """One update of both; None when they are equal."""
    losses = {name: add_gradients(side.step, micro) for name, side in sides.items()}
    computed = [{"loss": keep(losses[name])} | collect_gradients(side.step) for name, side in sides.items()]
    found = find_differences(computed[0], computed[1], tolerance) | find_missing(computed[0], computed[1])
    if groups.any_rank(bool(found)):
        for side in sides.values():
            side.step.discard()
        gradients = dict(zip(sides, computed, strict=True))
        return found, explain(sides, groups, micro, gradients, tolerance=tolerance)
    norms = {}
    for name, side in sides.items():
        limit = side.config.training.max_norm
        norms[name] = apply_update(side.step, side.optimizer, loss=losses[name], lr=side.lr, max_norm=limit).grad_norm
    updated = [{"grad_norm": keep(norms[name])} | collect_state(side) for name, side in sides.items()]
    found = find_differences(updated[0], updated[1], tolerance)
    if groups.any_rank(bool(found)):
        kinds = [type(side.optimizer).__name__ for side in sides.values()]
        note = f"loss and gradients are equal; optimizers: {kinds[0]} ({_options(sides['A'])}), {_options(sides['B'])}"
        return found, {"both": Finding("optimizer", "the update of the weights", note)}
    return None


def _options(side: Side) -> str:
    return f"{side.config.plan_optimizer().describe()}, lr {side.lr:g}, max_norm {side.config.training.max_norm:g}"


def collect_state(side: Side) -> dict[str, Tensor]:
    """Parameters and buffers that training changes, in the order of the table, then the optimizer's state."""
    kept = {name: value for name, value in side.step.model.named_buffers() if not name.endswith("coords")}
    state = {f"{kind} {name}": value for (kind, name), value in side.optimizer.state().items()}
    found = dict(side.step.parameters) | kept | state
    return {name: keep(value) for name, value in found.items() if value.numel()}


def collect_gradients(step: MeshStep) -> dict[str, Tensor]:
    """This rank's gradients, the last parameter's first: the order in which backward computes them."""
    named = list(step.trained.items())
    return {f"gradient {name}": keep(p.grad).to(p.dtype) for name, p in reversed(named) if p.grad is not None}


def explain(
    sides: dict[str, Side],
    groups: Groups,
    micro: list[Batch],
    computed: Mapping[str, Mapping[str, Tensor]],
    *,
    tolerance: float,
) -> dict[str, Finding]:
    """Which pass of which side changed loss or gradients on these micro-batches, or what else did.

    `computed` has the gradients of each side, as its own step made them.
    """
    steps = {name: side.step for name, side in sides.items() if isinstance(side.step, PipelineStep)}
    if steps:
        configs = {name: side.config for name, side in sides.items()}
        return explain_pipeline(steps, configs, groups, micro, computed, tolerance=tolerance)
    restart = find_restart(side.config for side in sides.values())
    stages = {name: make_stages(side, groups) for name, side in sides.items() if isinstance(side.step, GraphStep)}
    first = next(iter(sides.values()))
    tensors = [batch.tensors for batch in micro]
    scalars = first.step.compute_scalars(tensors)
    found: dict[str, Finding] = {}
    for batch in tensors:
        for name in stages:
            if name not in found:
                inputs = make_inputs(first.step, sides[name].step, batch, scalars)
                agree = groups.any_rank
                blamed = blame_passes(stages[name], inputs, tolerance=tolerance, agree=agree, restart=restart)
                found |= {name: blamed} if blamed else {}
        if found:
            return found
    batch = tensors[0]
    if len(stages) == 2:
        given = [make_inputs(first.step, side.step, batch, scalars) for side in sides.values()]
        bases = [each[find_base(each, restart)] for each in stages.values()]
        captured = compare_captures(bases, given, tolerance=tolerance)
        if groups.any_rank(captured is not None):
            return {"both": captured or Finding("capture", "the captured steps differ on another rank")}
    if len(stages) == 1:
        (name,) = stages
        (other,) = sides.keys() - stages.keys()
        given = [make_inputs(first.step, sides[name].step, each, scalars) for each in tensors]
        wrong = compare_with_modules(stages[name], given, computed[other], tolerance=tolerance, restart=restart)
        if groups.any_rank(wrong is not None):
            return {name: wrong or Finding(CAPTURE, "on another rank the captured graph differs from the eager step")}
    return {"both": EXECUTION}


def make_stages(side: Side, groups: Groups) -> list[PassedGraph]:
    """The side's graph after every pass."""
    source, settings = build_source(side.config, groups)
    facts = make_facts(source.table, groups, settings)
    passes = build_passes(settings.passes, settings.compile.numerics)
    return build_stages(source, make_example(side.config, source), facts, passes)


def make_inputs(
    owner: MeshStep, step: MeshStep, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor]
) -> StepInputs:
    """A micro-batch for the graphs of `step`, with the weights of `owner`."""
    assert isinstance(step, GraphStep)
    given = step.source.inputs(step.prepare(batch), scalars)
    return StepInputs(owner.parameters, given.buffers, given.batch, given.coords, given.scalars, given.frozen)

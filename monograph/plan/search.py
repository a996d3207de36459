"""Search: guess every choice, capture the most promising ones, rank them by what their graphs cost."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any

from monograph.compat.capture import TRACER_MODULES
from monograph.log import get_log
from monograph.machine.device import Machine
from monograph.parallel.mesh import Mesh
from monograph.plan.axes import Fixed, check_choice, find_closed_axes, list_choices, list_pipelines, list_stage_counts
from monograph.plan.choice import PipelineChoice, RunChoice
from monograph.plan.depth import ReducedDepth
from monograph.plan.measure import measure_choice
from monograph.plan.other_numerics import list_other_numerics
from monograph.plan.planned import PlannedRun
from monograph.plan.ranking import Guessed, Ranking
from monograph.plan.rough import ModelFacts, RoughEstimate, guess
from monograph.plan.study import ModelStudy, capture_reference, find_model_facts, study_model
from monograph.system.child_process import safe_import_path
from monograph.train.config import TrainerConfig

log = get_log(__name__)
Submit = Callable[..., "Future[Any]"]
_MOST_OF_A_CHOICE = 2
"""Rows for schedules of one choice."""
_FURTHEST = 10
"""How often the number of devices is doubled to find one that is enough."""


@dataclass(frozen=True)
class PlanResult:
    """What a search found."""

    runs: list[PlannedRun]
    """Those that fit, the fastest first."""
    others: list[PlannedRun]
    """What another class of numerics would do for the best of them."""
    misfits: list[PlannedRun]
    """Those that were captured and do not fit, the smallest first."""
    considered: int
    captured: int
    closed: dict[str, str]
    """Axes that were not searched, and why."""
    depth: ReducedDepth
    nearest: PlannedRun | None = None
    """Where nothing fits: the best run on the fewest devices that it fits on."""


@dataclass
class Search:
    """A recipe on a machine, and what was learned about it."""

    config: TrainerConfig
    machine: Machine
    fixed: Fixed
    study: ModelStudy
    submit: Submit
    runs: list[PlannedRun] = field(default_factory=list)
    captured: int = 0

    def guess_all(self, choices: Iterable[RunChoice], facts: ModelFacts) -> list[Guessed]:
        """The guess for every choice with the best of its schedules."""
        room = self.machine.memory_bytes
        found, schedules = [], {}
        for choice in choices:
            key = (choice.mesh.pp, choice.micro_batches)
            if key not in schedules:
                allowed = list_pipelines(self.config, *key, self.study.units, self.fixed)
                schedules[key] = [each for each in allowed if key[0] * each.virtual_stages in (1, *self.study.stages)]
            if schedules[key]:
                found.append(Guessed(choice, schedules[key], guess(choice, schedules[key], facts, self.machine, room)))
        return found

    def is_accepted(self, guessed: Guessed) -> bool:
        """Whether the configuration as a whole accepts a choice."""
        return not check_choice(self.config, guessed.choice, guessed.pipelines[0])

    def capture(self, chosen: Sequence[Guessed]) -> list[list[PlannedRun]]:
        """What the graph of each says, schedule by schedule, the best one first."""
        given = (self.machine, self.study.depth, self.study.stages)
        started = [self.submit(measure_choice, self.config, each.choice, each.pipelines, *given) for each in chosen]
        self.captured += len(started)
        found = []
        for each, future in zip(chosen, started, strict=True):
            pairs = zip(each.pipelines, future.result(), strict=True)
            made = (self.config, each.choice)
            runs = [PlannedRun(*made, pipeline, step, self.machine, self.study.flops) for pipeline, step in pairs]
            found.append(sorted(runs, key=lambda run: (not run.fits, run.update_seconds)))
        return found

    def explore(self, ranking: Ranking, *, wanted: int, jobs: int) -> None:
        """Capture until nothing is left that should be faster than the wanted runs, or twice as many are captured.

        The limit is a number of captures and no time, so that a plan is the same on a machine that is busy.
        """
        while self.captured < most_captures(wanted, jobs):
            chosen = ranking.take(jobs, below=self._find_slowest(wanted))
            if not chosen:
                return
            for guessed, runs in zip(chosen, self.capture(chosen), strict=True):
                needed = runs[0].needed_bytes
                ranking.learn(guessed, runs[0].update_seconds, needed)
                self.runs += runs

    def _find_slowest(self, wanted: int) -> float:
        """Seconds of the last of the best runs; there is no limit while they have fewer meshes."""
        best = choose_best(self.runs, wanted)
        meshes = {run.choice.mesh for run in best}
        return best[-1].update_seconds if len(meshes) == wanted else float("inf")


def most_captures(wanted: int, jobs: int) -> int:
    """Graphs that are captured for a plan of so many runs, by so many processes beside each other."""
    return 2 * wanted + jobs


def search(
    config: TrainerConfig,
    gpus: int,
    machine: Machine,
    fixed: Fixed,
    *,
    wanted: int = 10,
    jobs: int = 1,
) -> PlanResult:
    """The best ways to run a recipe on so many devices of a machine."""
    whole, machine = machine, machine.for_ranks(gpus)
    with executing(jobs) as submit:
        study = study_model(config, list_stage_counts(config, gpus, fixed))
        reference = submit(capture_reference, config, machine, study.depth)
        choices = list(list_choices(config, gpus, machine, fixed))
        facts = find_model_facts(config, study, reference.result())
        found = Search(config, machine, fixed, study, submit)
        ranking = Ranking(found.guess_all(choices, facts), machine.memory_bytes, found.is_accepted)
        found.explore(ranking, wanted=wanted, jobs=jobs)
        if not any(run.fits for run in found.runs):
            found.runs += [run for runs in found.capture(ranking.take(2, is_smallest=True)) for run in runs]
        best = choose_best(found.runs, wanted)
        nearest = find_nearest(found, gpus, facts, whole) if found.runs and not best else None
        others = list_other_numerics(config, best, fixed, machine) if best else []
        measured = found.capture([Guessed(each, [run.pipeline], RoughEstimate(1.0, 1.0)) for each, run in others])
    return PlanResult(
        runs=best,
        others=[runs[0] for runs in measured if runs[0].fits],
        misfits=sorted((run for run in found.runs if not run.fits), key=lambda run: run.needed_bytes),
        considered=len(choices),
        captured=found.captured,
        closed=find_closed_axes(config),
        depth=study.depth,
        nearest=nearest,
    )


def choose_best(runs: Iterable[PlannedRun], wanted: int) -> list[PlannedRun]:
    """The fastest run that fits of each mesh; where there are fewer meshes than wanted, their other runs as well.

    Of each choice there are few schedules, and gathered weights are kept or not, whichever is faster.
    """
    counts: Counter[RunChoice] = Counter()
    seen: set[tuple[RunChoice, PipelineChoice]] = set()
    meshes: set[Mesh] = set()
    first: list[PlannedRun] = []
    further: list[PlannedRun] = []
    for run in sorted((run for run in runs if run.fits), key=lambda run: -run.tokens_per_second):
        kind = run.choice._replace(reshard=True)
        if (kind, run.pipeline) in seen or counts[kind] == _MOST_OF_A_CHOICE:
            continue
        seen.add((kind, run.pipeline))
        counts[kind] += 1
        (further if run.choice.mesh in meshes else first).append(run)
        meshes.add(run.choice.mesh)
    return sorted([*first, *further][:wanted], key=lambda run: -run.tokens_per_second)


def find_nearest(found: Search, gpus: int, facts: ModelFacts, machine: Machine) -> PlannedRun | None:
    """The best run on the fewest devices that are enough, of twice as many, four times as many and so on."""
    for power in range(1, _FURTHEST + 1):
        more = gpus << power
        study = study_model(found.config, list_stage_counts(found.config, more, found.fixed))
        larger = machine.for_ranks(more)
        wider = Search(found.config, larger, found.fixed, study, found.submit)
        shares = replace(facts, shares=study.shares)
        guesses = wider.guess_all(list_choices(found.config, more, larger, found.fixed), shares)
        ranking = Ranking(guesses, machine.memory_bytes, wider.is_accepted)
        if not any(each.guess.bytes <= machine.memory_bytes for each in guesses):
            continue
        runs = [run for taken in wider.capture([*ranking.take(1), *ranking.take(1, is_smallest=True)]) for run in taken]
        best = choose_best(runs, 1)
        if best:
            return best[0]
    return None


@contextmanager
def executing(jobs: int) -> Iterator[Submit]:
    """Run functions here, or in processes of their own, which import torch once, while this one goes on."""
    if jobs == 1:
        yield _run_here
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([*TRACER_MODULES, __name__])
    try:
        pool = ProcessPoolExecutor(jobs, mp_context=context)
    except OSError as error:  # their semaphores are files in /dev/shm, which may be full or missing
        log.warning("no further processes can be started (/dev/shm: %s): meshes are tried one by one", error.strerror)
        yield _run_here
        return
    with safe_import_path(), pool:
        yield pool.submit


def _run_here(function: Callable[..., Any], *args: Any) -> "Future[Any]":
    done: Future[Any] = Future()
    done.set_result(function(*args))
    return done

"""How long a rank of a pipeline holds what it handed on: until the schedule says that it has been read."""

import gc
import weakref

import pytest
import torch

from monograph.capture.stage import CarrySpec
from monograph.execute.pipeline.links import Pending
from monograph.execute.pipeline.recorded import RecordedUpdate, find_arriving, find_computed
from monograph.execute.pipeline.runtime import PipelineRun, StageInterface
from monograph.execute.pipeline.stage_program import HANDED_ON, name_input
from monograph.graph.signature import InputKind, OutputKind
from monograph.parallel.pipeline import releases as releases_module
from monograph.parallel.pipeline.actions import ActionKind
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.releases import find_hand_over, find_releases
from monograph.parallel.pipeline.simulate import StageCost, simulate
from tests.kit.replayed_ops import ReplayedOps

CPU = torch.device("cpu")
HELD = [
    ("1f1b", 1, (4, 4, 3, 2)),
    ("zero_bubble", 1, (4, 4, 3, 2)),
    ("interleaved_1f1b", 2, (7, 7, 5, 5)),
    ("zbv", 2, (7, 5, 5, 4)),
    ("gpipe", 1, (64, 64, 64, 64)),
]
"""Values that each of four ranks holds at most in an update of 64 micro-batches. gpipe learns nothing early."""


def build(name, per_rank, micro_batches=64):
    return build_schedule(name, ranks=4, virtual_stages=per_rank, micro_batches=micro_batches)


def count_held(schedule, rank):
    held, most = set(), 0
    releases = find_releases(schedule, rank)
    for part in find_computed(schedule, rank):
        held -= set(releases.get(part, ()))
        handed = find_hand_over(part, schedule.stages)
        held |= {handed} if handed is not None else set()
        most = max(most, len(held))
    return most


@pytest.mark.parametrize(("name", "per_rank", "most"), HELD)
def test_a_rank_holds_what_it_handed_on_only_until_it_must_have_been_read(name, per_rank, most):
    schedule = build(name, per_rank)
    assert tuple(count_held(schedule, rank) for rank in range(4)) == most


@pytest.mark.parametrize(("name", "per_rank"), [(name, per_rank) for name, per_rank, _ in HELD])
def test_whatever_order_ranks_run_in_nothing_is_let_go_before_it_was_read(name, per_rank):
    """Ranks run as far as their inputs allow, the first or the last of them first."""
    schedule = build(name, per_rank, micro_batches=8)
    rows = [find_computed(schedule, rank) for rank in range(4)]
    releases = [find_releases(schedule, rank) for rank in range(4)]
    for order in (range(4), range(3, -1, -1), (2, 0, 3, 1)):
        handed, read, places = set(), set(), [0] * 4
        while any(place < len(row) for place, row in zip(places, rows, strict=True)):
            before = list(places)
            for rank in order:
                while places[rank] < len(rows[rank]):
                    part = rows[rank][places[rank]]
                    source = find_input(part, schedule.stages)
                    if source is not None and source not in handed:
                        break
                    assert set(releases[rank].get(part, ())) <= read, f"{part} lets go of what was not read"
                    read |= {source} - {None}
                    handed |= {find_hand_over(part, schedule.stages)} - {None}
                    places[rank] += 1
            assert places != before


def find_input(part, stages):
    """The send that an action needs, spelled out once more."""
    if part.kind is ActionKind.FORWARD:
        kind, stage = ActionKind.SEND_CARRY, part.stage - 1
    elif part.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRAD):
        kind, stage = ActionKind.SEND_GRAD, part.stage + 1
    else:
        return None
    return type(part)(stage, kind, part.micro_batch) if 0 <= stage < stages else None


class NoLinks:
    """Links whose transfers take no time; they refer to what is sent, as torch does."""

    device = CPU

    def send(self, what, peer, values):
        return Pending(what, peer, {}, list(values.values()))

    def receive(self, what, peer, specs):
        return Pending(what, peer, {}, [])

    def wait(self, pending, action):
        return {}


@pytest.mark.parametrize("micro_batches", [16, 64])
def test_an_update_lets_go_of_sent_values_while_it_runs(micro_batches):
    schedule, made, most = build("1f1b", 1, micro_batches), [], []

    def run(part, live):
        kind = OutputKind.CARRY if part.kind is ActionKind.FORWARD else OutputKind.CARRY_GRADIENT
        value = torch.empty(8)
        live[f"{HANDED_ON[kind]}x"] = value
        made.append(weakref.ref(value))
        del value
        gc.collect()
        most.append(sum(each() is not None for each in made))

    stages = {1: StageInterface(run, lambda *_: None, {}, {})}
    batches = [{}] * micro_batches
    PipelineRun(schedule, 1, stages, NoLinks(), batches, {}, find_releases(schedule, 1)).run()
    assert max(most) <= 5


@pytest.mark.parametrize(("name", "per_rank", "slots"), [("1f1b", 1, 4), ("zbv", 2, 7)])
def test_recordings_share_the_memory_of_what_they_hand_on_and_nothing_is_overwritten(name, per_rank, slots):
    schedule, spec = build(name, per_rank, 16), CarrySpec((4,), torch.float32, (1,))
    for rank in range(4):
        own = {number: make_stage(number, schedule.stages, spec) for number in schedule.stages_of(rank)}
        releases, parts = find_releases(schedule, rank), find_computed(schedule, rank)
        batches = [{"x": torch.zeros(4)} for _ in range(16)]
        update = RecordedUpdate(ReplayedOps(), CPU, own, batches, {}, releases)
        update.record(parts)
        places = {value.data_ptr() for each in update.actions.values() for value in each.outputs.values()}
        assert 0 < len(places) <= slots
        for shift in (0.0, 100.0):
            check_update(update, schedule, parts, releases, shift)


def check_update(update, schedule, parts, releases, shift):
    """Replay an update on random carries; every value is right when it may last be read."""
    update.fill([{"x": torch.full((4,), number + shift)} for number in range(16)], {})
    inputs, lives, handed = {}, {}, {}
    for part in parts:
        for each in releases.get(part, ()):
            found, wanted = handed.pop(each)
            assert torch.equal(found, wanted)
        key = part.stage, part.micro_batch
        live = lives.setdefault(key, {})
        given = torch.ones(4)
        for kind, specs in find_arriving(part, update.own[part.stage]).items():
            for name in specs:
                given = torch.randn(4)
                live[name_input(kind, name)] = given
        if part.kind is ActionKind.FORWARD:
            inputs[key] = given.clone() if part.stage else torch.full((4,), part.micro_batch + shift)
        update.replay(part, live)
        for name in [name for name in live if name.startswith("out/")]:
            wanted = inputs[key] * 2 if part.kind is ActionKind.FORWARD else given + inputs[key]
            handed[find_hand_over(part, schedule.stages)] = live.pop(name), wanted
    for found, wanted in handed.values():
        assert torch.equal(found, wanted)


def make_stage(number, stages, spec):
    """A stage that doubles its carry, and adds what it saved to the gradient that comes back."""

    def run(part, live):
        if part.kind is ActionKind.FORWARD:
            live["saved"] = live.pop(name_input(InputKind.CARRY if number else InputKind.BATCH, "x"))
            if number + 1 < stages:
                live["out/carry/x"] = live["saved"] * 2
        elif part.kind in (ActionKind.BACKWARD, ActionKind.INPUT_GRAD):
            back = live.pop(name_input(InputKind.CARRY_GRADIENT, "x")) if number + 1 < stages else torch.ones(4)
            if number:
                live["out/carry_gradient/x"] = back + live["saved"]

    def fill(live, kind, values):
        live.update({name_input(kind, name): value for name, value in values.items()})

    return StageInterface(run, fill, {"x": spec} if number else {}, {"x": spec} if number + 1 < stages else {})


def test_the_memory_that_sent_values_need_does_not_grow_with_micro_batches():
    cost = StageCost(forward_seconds=1, input_grad_seconds=1, weight_grad_seconds=1, sent_bytes=1)
    peaks = {count: simulate(build("1f1b", 1, count), [cost] * 4).peak_bytes for count in (16, 64)}
    assert peaks[16] == peaks[64] and max(peaks[64]) <= 8 and min(peaks[64]) > 0


def test_a_schedule_is_studied_once_for_all_of_its_ranks(monkeypatch):
    """1,024 ranks that are simulated would study it 1,024 times, which is quadratic."""
    studied = []
    find_known = releases_module._find_known
    monkeypatch.setattr(releases_module, "_find_known", lambda *args: studied.append(1) or find_known(*args))
    releases_module._study.cache_clear()
    schedule = build("1f1b", 1, micro_batches=9)
    for rank in range(4):
        find_releases(schedule, rank)
    assert len(studied) == 1

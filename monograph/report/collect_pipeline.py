"""What the report says of a pipeline, as plain data: ranks with their actions and memory, stages with their costs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.simulate import Simulation, StageCost
from monograph.parallel.pipeline.stages import StagePlan


def collect_pipeline(
    plan: StagePlan,
    schedule: Schedule,
    costs: Sequence[StageCost],
    notes: Sequence[Mapping[str, str]],
    simulation: Simulation,
) -> dict[str, Any]:
    """The numbers of the report; an action is its name, kind, start and end in seconds, and the bytes alive. `notes`
    has what passes did, stage by stage."""
    names = [units[0] if len(units) == 1 else f"{units[0]} .. {units[-1]}" for units in plan.stages]
    return {
        "seconds": simulation.seconds,
        "bubble": simulation.bubble,
        "ranks": [
            {
                "rank": rank,
                "stages": " ".join(map(str, schedule.stages_of(rank))),
                "peak_bytes": simulation.peak_bytes[rank],
                "peak_action": simulation.peak_actions[rank],
                "bubble": simulation.bubble_of(rank),
                "actions": [
                    [str(span.action), span.action.kind.name.lower(), span.start, span.end, live]
                    for span, live in zip(simulation.spans[rank], simulation.live_bytes[rank], strict=True)
                ],
            }
            for rank in range(schedule.ranks)
        ],
        "stages": [
            {"stage": number, "units": name, **dataclasses.asdict(cost), "passes": dict(done)}
            for number, (name, cost, done) in enumerate(zip(names, costs, notes, strict=True))
        ],
    }

"""Ways to run the graph of a tiny model, each compared with the eager step bit for bit. Ranks import this file."""

import os
from pathlib import Path

from monograph.parallel.groups import joined_groups
from monograph.passes.order import ORDER
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU, differences, make_updates, small

GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph"}
POLICIES = {
    "default": {},
    "all": {"activation_checkpoint.mode": "none"},
    "min_cut": {"activation_checkpoint.mode": "min_cut"},
    "full": {"activation_checkpoint.mode": "full"},
    "selected": {"activation_checkpoint.mode": "full", "activation_checkpoint.save": ("layers.*.attention.wo::mm",)},
    "budget": {"activation_checkpoint.mode": "budget", "activation_checkpoint.budget_gib": 0.0002},
    "offload": {"passes.offload_activations.budget_gib": 1.0, "passes.offload_activations.min_bytes": 64},
}
WITHOUT = {f"no {name}": {"passes.off": (name,)} for name in ORDER}
NOTHING = {"no pass at all": {"passes.off": tuple(ORDER)}}
VARIANTS = POLICIES | WITHOUT | NOTHING
ROUTINGS = ((), (2, 3))
TWO_BLOCKS = {"model.n_layers": 2}
"""As few as show everything: each variant is captured anew."""


def compare_with_eager(
    model: str, folder: str, names: tuple[str, ...], experts: str = "loop", extra: dict | None = None, **degrees: int
) -> dict[str, list[str]]:
    """On one rank of a launched world, or alone: for each variant the tensors that differ from the eager step's."""
    more = {**TWO_BLOCKS, **(extra or {})}
    eager = small(model, Path(folder), more, experts=experts, **degrees)
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted = make_updates(eager, groups, routings=ROUTINGS)
        found = {}
        for name in names:
            config = small(model, Path(folder), {**GRAPH, **more, **VARIANTS[name]}, experts=experts, **degrees)
            found[name] = differences(wanted, make_updates(config, groups, routings=ROUTINGS))
        return found

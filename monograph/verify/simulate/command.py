"""`monograph verify --simulate`: simulate the mesh, tell a person, and write the numbers for a program."""

import json
import math
from pathlib import Path
from typing import Any

from monograph.errors import EXIT_FAILED
from monograph.log import set_up_log
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.simulate.run import MeshSimulation, simulate
from monograph.verify.simulate.show import describe_scope, print_simulation
from monograph.whole_file import write_output


def simulate_command(config: TrainerConfig, *, ranks: int, each_pass: bool) -> int:
    """Exit code 1 when anything differs, as for `verify` on real ranks."""
    set_up_log(level=config.debug.log_level)
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    found = simulate(config, mesh, every_pass=each_pass)
    print_simulation(found, config)
    text = json.dumps(as_json(found, config), indent=1, allow_nan=False)
    write_output(Path(config.job.dump_folder) / "simulate.json", text + "\n")
    return 0 if found.is_equal else EXIT_FAILED


def as_json(found: MeshSimulation, config: TrainerConfig) -> dict[str, Any]:
    """All numbers; a difference that is not finite is a word."""
    return {
        "is_equal": found.is_equal,
        "ranks": found.mesh.world_size,
        "blame": found.blame,
        "scope": describe_scope(found, config),
        "seconds": found.seconds,
        "peak_bytes": found.peak_bytes,
        "update": {entry.name: _plain(entry.difference) for entry in found.update},
        "structures": [
            {"after": each.after, "units": each.units, "kinds": each.kinds, "differences": list(each.differences)}
            for each in found.structures
        ],
        "graphs": [
            {
                "after": graph.after,
                "nodes": graph.nodes,
                "computed": graph.execution.calls,
                "shared": graph.execution.shared,
                "outputs": graph.comparison.compared,
                "worst": _plain(graph.comparison.worst),
                "wrong": [str(entry) for entry in graph.comparison.wrong],
            }
            for graph in found.graphs
        ],
    }


def _plain(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)

"""A simulation in words: what was compared, what differs, what was not simulated."""

from rich.table import Table

from monograph.parallel.mesh import Mesh
from monograph.plurals import counted
from monograph.system.console import make_console, styled
from monograph.train.config import TrainerConfig
from monograph.verify.float8 import is_quantized
from monograph.verify.simulate.outcome import TOLERANCE
from monograph.verify.simulate.run import MeshSimulation
from monograph.verify.simulate.structure import CAPTURED, StructureCheck
from monograph.verify.simulate.update import MOST_UPDATED

_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
SHOWN = 8
"""Wrong outputs that are listed."""


def print_simulation(found: MeshSimulation, config: TrainerConfig) -> None:
    """Every graph with its largest difference, the verdict, and what the verdict is about."""
    console = make_console(soft_wrap=False)
    title = f"{describe_mesh(found.mesh)} against one device in fp64, largest relative difference"
    table = Table(title=f"{title} (tolerance {TOLERANCE:.0e})", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("graph")
    for name in ("nodes", "ops computed", "shared", "outputs", "difference"):
        table.add_column(name, justify="right")
    for graph in found.graphs:
        worst = styled((f"{graph.comparison.worst:.1e}", "red" if graph.comparison.wrong else ""))
        counts = (graph.nodes, graph.execution.calls, graph.execution.shared, graph.comparison.compared)
        table.add_row(graph.after, *(f"{count:,}" for count in counts), worst)
    if found.update:
        largest = max(entry.difference for entry in found.update)
        style = "red" if any(entry.is_wrong for entry in found.update) else ""
        table.add_row("update", "", "", "", str(len(found.update)), styled((f"{largest:.1e}", style)))
    console.print(table)
    if found.is_equal:
        console.print(styled(("equal", "green"), f": {describe_equal(found)}"))
        for checked in found.structures:
            if checked.is_complete:
                console.print(describe_structure(checked))
    else:
        console.print(styled(("different", "red"), f", first: {found.blame}"))
        outputs = [entry for graph in found.graphs for entry in graph.comparison.wrong]
        for entry in [*outputs, *(entry for entry in found.update if entry.is_wrong)][:SHOWN]:
            console.print(f"  {entry}")
    simulated, *missing = describe_scope(found, config)
    console.print(f"simulated: {simulated}")
    for line in missing:
        console.print(styled(("not simulated", "yellow"), f": {line}"))
    console.print(
        f"{found.seconds:.1f} s, values of all ranks took at most {found.peak_bytes / 2**20:,.0f} MiB at a time"
    )


def describe_mesh(mesh: Mesh) -> str:
    """The ranks of a mesh with its degrees above 1."""
    degrees = " ".join(f"{name} {getattr(mesh, name)}" for name in _AXES if getattr(mesh, name) > 1)
    return f"{mesh.world_size:,} ranks" + (f" ({degrees})" if degrees else "")


def describe_equal(found: MeshSimulation) -> str:
    """The verdict on a plan without faults."""
    return f"the plan on {counted(found.mesh.world_size, 'rank')} computes what one device computes"


def describe_structure(checked: StructureCheck) -> str:
    """The line of a graph that has the structure of the one simulated."""
    kinds = counted(checked.kinds, "kind")
    return f"at the run's own sizes, {checked.after}: {kinds} of units, with the ops, groups and operands simulated"


def describe_scope(found: MeshSimulation, config: TrainerConfig) -> list[str]:
    """What was simulated, then one line for each part of a run that was not."""
    small, rounds = found.config, found.different_batches
    layers = f"{getattr(small.model, 'n_layers', 'all')} of {getattr(config.model, 'n_layers', 'all')} blocks, "
    captured = sum(graph.after.startswith(CAPTURED) for graph in found.graphs)
    micro_batches = "one micro-batch" if captured == 1 else f"{captured} micro-batches, added up,"
    lines = [
        f"forward, loss and backward of {micro_batches} on every rank, of a small copy with {layers}"
        f"sequences of {small.training.seq_len} and {rounds} different micro-batches; random weights and buffers"
    ]
    covered = bool(found.structures) and found.structures[0].is_complete
    sizes = "" if covered or small.model == config.model else "the run's own sizes, "
    lines.append(f"{sizes}GPU kernels, and rounding in bfloat16")
    lines += [
        f"{checked.after}, at the run's own sizes: {difference}"
        for checked in found.structures
        for difference in checked.differences
    ]
    lines[0] += "; then counts, total loss, gradient norm, clipping, the update of weights and of expert biases"
    if small.needs_evaluation():
        lines[0] += ", and the loss of an evaluation"
    lines.append("data loading, checkpoints, the order of collectives")
    if found.mesh.pp > 1:
        lines.append("the schedule's order, which is checked for itself, and sends between stages")
    if found.mesh.world_size > MOST_UPDATED:
        lines.append(f"the update of weights on other than the first {MOST_UPDATED} distinct shards")
    if is_quantized(config):
        lines.append("float8 matmuls: the matmuls of numerics fast took their place")
    return lines

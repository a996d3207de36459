"""Whether a run fits into its devices, before anything is allocated: the plan's estimate of what it asks for."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from monograph.errors import ConfigError
from monograph.machine.choose import AUTO
from monograph.machine.device import Machine
from monograph.models.freeze import freeze
from monograph.models.model import Model
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import build_table
from monograph.parallel.pipeline.build import build_schedule
from monograph.parallel.pipeline.builtin import STAGES_PER_RANK, is_file
from monograph.plan.axes import Fixed
from monograph.plan.choice import PipelineChoice, RunChoice
from monograph.plan.measure import capture_step, estimate_stages, estimate_whole
from monograph.plan.memory import MemoryParts
from monograph.plan.planned import PlannedRun
from monograph.plan.search import search
from monograph.plan.show import name_mesh, name_policy
from monograph.plan.study import study_model
from monograph.report.units import format_bytes
from monograph.train.config import TrainerConfig
from monograph.train.flex_limits import has_compiler
from monograph.train.layout import count_micro_batches
from monograph.train.optimizer_config import ITEM_BYTES
from monograph.train.out_of_memory import suggest_less


def check_room(
    config: TrainerConfig,
    mesh: Mesh,
    machine: Machine,
    fixed: Fixed,
    *,
    room: int,
    command: Callable[[PlannedRun], str],
    may_grow: bool = True,
) -> None:
    """Refuse what needs more than `room` bytes of a device, with the command of the best run that fits.

    Estimates were at most 2 % too low where they were measured, and never too high: what is refused would have failed.
    """
    needed = estimate_needed(config, mesh, machine)
    if needed.peak <= room:
        return
    kinds = ("parameters", "gradients", "optimizer", "saved", "working")
    parts = {kind: getattr(needed, kind) for kind in kinds}
    best = find_fitting(config, mesh, replace(machine, memory_gb=room / 1e9), fixed, may_grow=may_grow)
    raise ConfigError(
        f"an update needs {format_bytes(needed.peak)} of a device's memory, which has {format_bytes(room)}",
        why=", ".join(f"{kind} {format_bytes(size)}" for kind, size in parts.items() if size),
        do=suggest_less(config) if best is None else f"{command(best)}  # {describe_fit(best)}",
    )


def estimate_needed(config: TrainerConfig, mesh: Mesh, machine: Machine) -> MemoryParts:
    """What the allocator of the fullest rank hands out at the peak of an update.

    In graph mode by the plan's estimate. In other modes, and of a step from an artifact, what an update holds at the
    least: weights, gradients and the optimizer's state.
    """
    if config.compile.mode != "graph" or config.compile.artifact or has_compiler(config, machine.device):
        return count_state(config, mesh)
    config = name_machine(config, machine)
    name = config.parallelism.pipeline_schedule
    per_rank = config.parallelism.pipeline_virtual_stages or STAGES_PER_RANK.get(name, 1)
    if mesh.pp > 1 and is_file(name):
        count = count_micro_batches(config, mesh)
        per_rank = build_schedule(name, ranks=mesh.pp, virtual_stages=0, micro_batches=count).stages // mesh.pp
    pipeline = PipelineChoice(name, per_rank)
    study = study_model(config, [mesh.pp * pipeline.virtual_stages])
    # A copy to the host that is late delays a step; the allocator waits for it before it gives up.
    captured = capture_step(config, machine, study.depth, world_size=mesh.world_size // mesh.pp)
    micro_batches = count_micro_batches(config, mesh)
    if mesh.pp == 1:
        return estimate_whole(captured, config, micro_batches, replace(machine, host_gb_per_second=math.inf)).memory
    mode = config.activation_checkpoint.resolve(config.compile)
    reshard = config.parallelism.reshard_after_forward
    choice = RunChoice(mesh, config.training.local_batch_size, micro_batches, mode, reshard)
    return estimate_stages(captured, config, choice, pipeline, machine, study.stages).memory


def count_state(config: TrainerConfig, mesh: Mesh) -> MemoryParts:
    """Weights, gradients and the optimizer's state of a rank; of a pipeline's, as if its stages were equal."""
    with torch.device("meta"):
        model: Model = config.model.build()
    freeze(model, config.training.freeze)
    table, item = build_table(model, model.parallel_plan(), mesh), ITEM_BYTES[config.training.dtype]
    weights, trained = (
        item * sum(math.prod(slot.local_shape) for slot in slots) // mesh.pp for slots in (table, table.trained)
    )
    gradients = trained // 2 if config.plan_optimizer().is_single_pass and item == 4 else trained
    state = int(config.find_state_ratio() * trained)
    return MemoryParts(parameters=weights, gradients=gradients, optimizer=state, saved=0, working=0, most_saved=0)


def find_fitting(
    config: TrainerConfig, mesh: Mesh, machine: Machine, fixed: Fixed, *, may_grow: bool
) -> PlannedRun | None:
    """The fastest run that fits on as many devices, or, if it may grow, on the fewest that are enough; in graph mode,
    which plans are for."""
    if config.compile.mode != "graph" or has_compiler(config, machine.device):
        return None  # what a compiler fuses is not known before it has run, which takes minutes
    config = name_machine(config, machine)
    found = search(config, mesh.world_size, machine, fixed, wanted=1)
    if found.runs:
        return found.runs[0]
    return found.nearest if may_grow else None


def describe_fit(run: PlannedRun) -> str:
    """What a run is and needs, in a few words."""
    return f"{name_mesh(run)}, saves {name_policy(run)}: needs {format_bytes(run.needed_bytes)}"


def name_machine(config: TrainerConfig, machine: Machine) -> TrainerConfig:
    """The configuration with the machine of the run by its name: on the CPU that captures, auto would be that CPU."""
    return config.replace(machine=machine.name) if config.machine == AUTO else config

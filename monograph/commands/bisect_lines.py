"""The two lines of `monograph bisect`, read and checked. Loads without torch."""

from dataclasses import dataclass, fields

from monograph.commands.compare import read_line, take_apart
from monograph.commands.insight_arguments import BisectArguments
from monograph.commands.request import Request
from monograph.errors import ConfigError
from monograph.parallel.fit import plan_schedule
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.builtin import PLAIN
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.preflight import check_checkpoint

_SAME = ("dataloader", "tokenizer")
_SAME_TRAINING = ("seq_len", "local_batch_size", "global_batch_size")


@dataclass(frozen=True)
class BisectLines:
    """Both configurations, and the ranks they run on."""

    left: TrainerConfig
    right: TrainerConfig
    ranks: int


def read_lines(arguments: BisectArguments) -> BisectLines:
    """What both lines ask for; without a second one, the first one's eager step."""
    left = read_line(take_apart(arguments.left))
    if arguments.right:
        right = read_line(take_apart(arguments.right))
        check_same(left, right)
        return BisectLines(left.config, right.config, left.options["ranks"])
    config = left.config
    if config.compile.mode == "eager":
        raise ConfigError(
            "compile.mode is eager, and there is no second run",
            why="a single run is compared with its own eager step",
            do="leave --compile.mode out, or give a second run",
        )
    return BisectLines(config, make_eager(config), left.options["ranks"])


def make_eager(config: TrainerConfig) -> TrainerConfig:
    """The eager step of a run: the modules op by op over the same shards, in the same chunks."""
    overlap = config.compile.expert_overlap
    chunks = overlap.replace(strategy="trace") if overlap.is_on else overlap
    return config.replace(
        compile=type(config.compile)(mode="eager", expert_overlap=chunks),
        parallelism=config.parallelism.replace(fsdp="graph", pipeline_schedule=find_plain_schedule(config)),
        passes=type(config.passes)(),
        activation_checkpoint=type(config.activation_checkpoint)(),
    )


def find_plain_schedule(config: TrainerConfig) -> str:
    """The schedule of the eager step: the same, or one with whole backwards that gives ranks the same stages."""
    name, degree = config.parallelism.pipeline_schedule, config.parallelism.pipeline_parallel_degree
    if degree == 1 or name in PLAIN:
        return name
    if name != "zero_bubble":
        raise ConfigError(
            f"parallelism.pipeline_schedule is {name}, and there is no second run",
            why="a single run is compared with its own eager step, which cannot split backward, and no schedule with "
            "whole backwards gives ranks the same stages",
            do="give a second run with the same schedule, or --parallelism.pipeline_schedule 1f1b",
        )
    return "1f1b"


def find_stages(config: TrainerConfig, mesh: Mesh) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What decides which rank has which units of the model."""
    if mesh.pp == 1:
        return (), ()
    training = config.training
    parts = training.local_batch_size * mesh.data_parts
    micro_batches = 1 if training.global_batch_size == -1 else training.global_batch_size // parts
    schedule = plan_schedule(config.parallelism, micro_batches)
    return tuple(config.parallelism.pipeline_stages), tuple(schedule.stage_ranks)


def check_bisect(arguments: BisectArguments) -> None:
    """What can be refused before torch is imported: lines that cannot be compared, checkpoints that are not there."""
    lines = read_lines(arguments)
    for config in (lines.left, lines.right):
        check_checkpoint(config)


def check_same(left: Request, right: Request) -> None:
    """Refuse lines whose numbers have nothing to do with each other."""
    ranks = [request.options["ranks"] for request in (left, right)]
    meshes = [plan_run_mesh(each.config, max(each.options["ranks"], 1)) for each in (left, right)]
    if meshes[0] != meshes[1] or ranks[0] != ranks[1]:
        raise ConfigError(
            "the runs use different meshes",
            why="values are compared rank by rank",
            do="the same --ranks and degrees in both; monograph verify compares a mesh with one device",
        )
    stages = [find_stages(each.config, mesh) for each, mesh in zip((left, right), meshes, strict=True)]
    if stages[0] != stages[1]:
        raise ConfigError(
            "the runs split the model into different pipeline stages",
            why="values are compared rank by rank",
            do="the same parallelism.pipeline_stages in both, and schedules that give ranks the same stages",
        )
    for name in _SAME:
        if getattr(left.config, name) != getattr(right.config, name):
            raise _refuse(name)
    for name in _SAME_TRAINING:
        if getattr(left.config.training, name) != getattr(right.config.training, name):
            raise _refuse(f"training.{name}")
    sizes = [_find_sizes(request.config) for request in (left, right)]
    if type(left.config.model) is not type(right.config.model) or sizes[0] != sizes[1]:
        raise ConfigError("the runs train different models", why="their values have different shapes")


def _find_sizes(config: TrainerConfig) -> dict[str, int]:
    """The sizes of a model that are numbers of its own config."""
    model = config.model
    named = {each.name: getattr(model, each.name) for each in fields(model)}
    return {name: value for name, value in named.items() if type(value) is int}


def _refuse(name: str) -> ConfigError:
    return ConfigError(f"the runs differ in {name}", why="they would read different data", do="make it equal in both")

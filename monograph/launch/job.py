"""A job on several nodes: what its file is made from, and what is checked before. Loads without torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from monograph.axes import Group
from monograph.errors import ConfigError
from monograph.launch.quote import quote_command, quote_word
from monograph.machine.choose import AUTO, FALLBACK, find_machine
from monograph.machine.device import Machine
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.optimizer_config import ITEM_BYTES

ENGINES = ("slurm", "kubernetes", "skypilot", "torchrun")
EXIT_REQUEUE = 75
"""What ranks end with when they were asked to stop and have saved: `StoppedOnRequest.exit_code`."""
LEAST_SECONDS_TO_SAVE = 180
"""Between the request to stop and the end, at least: a step, and SLURM may ask up to a minute early."""
SAVE_GB_PER_SECOND = 0.5
"""What a node is taken to write to shared storage and to read back from it; few are slower."""
SECONDS_TO_END = 30
"""What engines leave the agents after the ranks' last second."""
_INNER = (
    (Group.TP, "tensor_parallel_degree", "tp"),
    (Group.CP, "context_parallel_degree", "cp"),
    (Group.ETP, "expert_tensor_parallel_degree", "etp"),
    (Group.EP, "expert_parallel_degree", "ep"),
)
"""Groups that communicate inside of layers, so that their links decide how fast a step is."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that a job file is made from."""

    name: str
    nodes: int
    min_nodes: int
    """Fewer than `nodes`: the job is elastic and goes on with this many when others are lost."""
    ranks_per_node: int
    has_gpus: bool
    words: tuple[str, ...]
    """RECIPE and flags of `monograph train`."""
    folder: str
    """The run's folder, on a file system that all nodes share."""
    python: str
    port: int
    max_restarts: int
    seconds_to_save: int
    """Between the request to stop and the end."""
    time: str
    command: str
    """The command that made the file."""
    notes: tuple[str, ...] = ()
    """What a reader should know before submitting it."""
    partition: str = ""
    account: str = ""
    image: str = ""
    volume_claim: str = ""
    mount: str = ""
    accelerators: str = ""
    infra: str = ""

    @property
    def is_elastic(self) -> bool:
        """Whether the job may run on fewer nodes than it asks for."""
        return self.min_nodes < self.nodes

    @property
    def nnodes(self) -> str:
        """As torchrun wants it: 4, or 2:4."""
        return f"{self.min_nodes}:{self.nodes}" if self.is_elastic else str(self.nodes)

    @property
    def seconds_to_stop(self) -> int:
        """How long an agent waits for its ranks before it kills them: a little less than the engine waits for it."""
        return self.seconds_to_save - SECONDS_TO_END

    def agent(self, *, endpoint: str, run_id: str, extra: Sequence[str] = ()) -> list[list[str]]:
        """The command of one node's agent, as lines of words; `endpoint` and `run_id` may hold shell variables."""
        return [
            [quote_command(self.python), "-P", "-m", "monograph.launch.agent"],
            ["--nnodes", self.nnodes, "--nproc-per-node", str(self.ranks_per_node), *extra],
            ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", run_id],
            ["--max-restarts", str(self.max_restarts), "--log-dir", quote_word(f"{self.folder}/logs")],
            ["-m", "monograph", "train", *map(quote_word, self.words)],
        ]


def plan_words(words: Sequence[str], config: TrainerConfig) -> tuple[str, ...]:
    """The words of the run, with what a job that may be started again needs; what the user wrote stays."""
    given = {word for word in words if word.startswith("--")}
    added = [] if "--job.dump_folder" in given else ["--job.dump_folder", config.job.dump_folder]
    if config.debug.device == "auto" and "--debug.device" not in given:
        added += ["--debug.device", "cuda"]  # a node whose GPUs are lost must not train on its CPUs
    added += [] if "--checkpoint.load" in given else ["--checkpoint.load", "auto"]
    return (*words, *added)


def check_nodes(config: TrainerConfig, *, nodes: int, min_nodes: int, ranks_per_node: int) -> Mesh:
    """The mesh on all nodes; refused when it does not fit any number of nodes that the job may run on."""
    elastic = range(min_nodes, nodes)
    if elastic and config.training.global_batch_size == -1:
        whole = plan_run_mesh(config, nodes * ranks_per_node).data_parts * config.training.local_batch_size
        raise ConfigError(
            f"--min_nodes {min_nodes} of --nodes {nodes} while training.global_batch_size is -1",
            why="the global batch would change with the number of nodes, and with it the training",
            do=f"--training.global_batch_size {whole}",
        )
    for count in elastic:
        try:
            plan_run_mesh(config, count * ranks_per_node)
        except ConfigError as error:
            raise ConfigError(
                f"--min_nodes {min_nodes}: the run does not fit {count} nodes of {ranks_per_node} ranks: {error.what}",
                why=error.why,
                do=f"--min_nodes {nodes}, or: {error.do}",
            ) from None
    try:
        return plan_run_mesh(config, nodes * ranks_per_node)
    except ConfigError as error:  # it is shared with train, whose --ranks a job has not
        do = "another --nodes or --gpus_per_node, or change the degrees" if "--ranks" in error.do else error.do
        raise ConfigError(error.what, why=error.why, do=do) from None


def plan_seconds_to_save(config: TrainerConfig, mesh: Mesh, parameters: int | None, *, nodes: int) -> tuple[int, str]:
    """Between the request to stop and the end, and a note that says from what.

    A checkpoint is written and read back; with `async_save` another one may be under way, and ends first.
    """
    if parameters is None or not config.checkpoint.enabled:
        return LEAST_SECONDS_TO_SAVE, ""
    state_gb = parameters * ITEM_BYTES[config.training.dtype] * (1 + config.find_state_ratio()) / nodes / 1e9
    saves = 2 if config.checkpoint.async_save else 1
    seconds = LEAST_SECONDS_TO_SAVE + 2 * saves * state_gb / SAVE_GB_PER_SECOND
    rounded = math.ceil(seconds / 30) * 30
    checkpoints = "two checkpoints" if saves == 2 else "a checkpoint"
    return rounded, (
        f"{rounded} s to stop: a step, and {checkpoints} of {state_gb:.1f} GB a node, written and read back at "
        f"{SAVE_GB_PER_SECOND:g} GB/s; --seconds_to_save N for slower storage or longer steps"
    )


def find_notes(config: TrainerConfig, mesh: Mesh, *, ranks_per_node: int) -> list[str]:
    """What is allowed and still worth knowing: slow links, nothing to restart from."""
    found = []
    fast = ranks_per_node
    if config.machine != AUTO:  # an NVL72 rack is several nodes with the links of one
        fast = max(fast, find_machine(config.machine).devices_per_node)
    for group, field, name in _INNER:
        span, degree = mesh.group_span(group), mesh.group_size(group)
        if degree > 1 and span > fast:
            divisors = [divisor for divisor in range(1, degree + 1) if degree % divisor == 0]
            inside = max(divisor for divisor in divisors if divisor * span <= fast * degree or divisor == 1)
            found.append(
                f"{name} groups of {degree} ranks reach over {-(-span // ranks_per_node)} nodes, whose links are slow: "
                f"--parallelism.{field} {inside} keeps them inside of one, and leaves the rest to data parallelism"
            )
    if not config.checkpoint.enabled:
        found.append("checkpoint.enabled is false: every restart begins at step 1")
    elif not config.checkpoint.interval:
        found.append("checkpoint.interval is 0: only a stop on request saves, and a crash loses everything before it")
    return found


def check_memory(config: TrainerConfig, mesh: Mesh, parameters: int | None) -> str:
    """Refuse a job whose parameters and moments alone do not fit a device; else a note on what is left of it."""
    if parameters is None or config.debug.device == "cpu":
        return ""
    machine: Machine = find_machine(FALLBACK if config.machine == AUTO else config.machine)
    state = parameters * ITEM_BYTES[config.training.dtype] * (1 + config.find_state_ratio()) / mesh.shards
    if state > machine.memory_bytes:
        raise ConfigError(
            f"{parameters / 1e9:.1f} billion parameters over {mesh.shards} ranks need {state / 1e9:.0f} GB on each",
            why=f"parameters and optimizer state alone are more than the {machine.memory_gb:.0f} GB of {machine.name}",
            do="more --nodes, fewer replicas, or --machine NAME for another device",
        )
    name = machine.name if config.machine != AUTO else f"{machine.name} (--machine names another)"
    return (
        f"parameters and optimizer state take {state / 1e9:.1f} of {machine.memory_gb:.0f} GB on {name}; "
        "monograph inspect estimates the whole step"
    )

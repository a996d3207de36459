"""Options of `monograph launch`. Those that stand in a job file are checked by pattern, or quoted where they stand."""

import re
from dataclasses import dataclass

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError, did_you_mean


@dataclass(kw_only=True, slots=True)
class LaunchOptions(Configurable.Config):
    """`monograph launch`."""

    on: str = ""
    """The engine: slurm, kubernetes (Kubeflow Trainer v2), skypilot, or torchrun (no scheduler)."""
    nodes: int = 1
    """Nodes of the job."""
    gpus_per_node: int = 8
    """GPUs of a node, one rank each; ranks of a node with --debug.device cpu."""
    min_nodes: int = 0
    """Go on with this many nodes when others are lost (elastic); 0 needs all of them."""
    submit: bool = False
    """Hand the job to the engine instead of printing its file."""
    out: str = ""
    """Write the job file here."""
    name: str = ""
    """Name of the job; empty takes the recipe's."""
    simulate: bool = True
    """Compute a small copy of the run on all ranks of the job, in this process, and refuse wrong numbers."""
    max_restarts: int = 3
    """How often each agent starts its ranks anew after a failure."""
    port: int = 29500
    """Where the agents meet on the first node."""
    python: str = "python"
    """The interpreter on the nodes that has monograph installed."""
    seconds_to_save: int = 0
    """Between the request to stop and the end, in which a step is finished and saved; 0 reckons it from the size of a
    checkpoint."""
    time: str = "24:00:00"
    """slurm: the time limit of the job; it is requeued when that is over."""
    partition: str = ""
    """slurm: the partition."""
    account: str = ""
    """slurm: the account."""
    image: str = ""
    """kubernetes: the container image with monograph installed."""
    volume_claim: str = ""
    """kubernetes: the PersistentVolumeClaim that holds the run's folder, data and artifacts; skypilot: the volume."""
    mount: str = ""
    """kubernetes, skypilot: where shared storage is mounted; job.dump_folder lies below it."""
    accelerators: str = ""
    """skypilot: the kind of GPU, such as H100."""
    infra: str = ""
    """skypilot: where to run, such as aws or k8s; empty lets it choose."""

    def check(self) -> None:
        if self.on not in _ENGINE_OPTIONS:
            raise ConfigError(
                f"--on {self.on}" if self.on else "--on is missing",
                why=f"engines are {', '.join(_ENGINE_OPTIONS)}",
                do=did_you_mean(self.on, _ENGINE_OPTIONS) if self.on else "--on slurm",
            )
        for name, least in (("nodes", 1), ("gpus_per_node", 1), ("min_nodes", 0), ("max_restarts", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name} must be >= {least}, got {getattr(self, name)}")
        if self.min_nodes > self.nodes:
            raise ConfigError(
                f"--min_nodes {self.min_nodes} of --nodes {self.nodes}",
                why="there are never more nodes than --nodes",
                do=f"--min_nodes {self.nodes}",
            )
        if self.seconds_to_save and not 60 <= self.seconds_to_save <= 65535:
            raise ConfigError(
                f"--seconds_to_save must be in 60..65535, got {self.seconds_to_save}",
                why="ranks need time for a step and a checkpoint, and SLURM counts no further",
                do="--seconds_to_save 600, or leave it out",
            )
        if not 0 < self.port < 65536:
            raise ConfigError(f"--port must be in 1..65535, got {self.port}")
        self._check_engine()

    def _check_engine(self) -> None:
        """Refuse options of other engines, and what is missing for this one."""
        defaults = LaunchOptions()
        mine = _ENGINE_OPTIONS[self.on]
        for name in {name for names in _ENGINE_OPTIONS.values() for name in names} - set(mine):
            if getattr(self, name) != getattr(defaults, name):
                others = ", ".join(engine for engine, names in _ENGINE_OPTIONS.items() if name in names)
                raise ConfigError(
                    f"--{name} while --on is {self.on}", why=f"it is for {others}", do=f"leave --{name} out"
                )
        for name in ("python", *mine):
            pattern, do = _PATTERNS.get(name, _PLAIN)
            if not pattern.fullmatch(value := getattr(self, name)):
                why = "the engine would not read it as one value"
                raise ConfigError(f"--{name} {value!r}" if value else f"--{name} is empty", why=why, do=do)
        if self.on == "kubernetes" and not self.image:
            raise ConfigError("--image is missing", why="pods need one that has monograph installed", do="--image NAME")
        needs_mount = self.on == "kubernetes" and bool(self.volume_claim) != bool(self.mount)
        if needs_mount or (self.volume_claim and not self.mount):
            raise ConfigError(
                f"--volume_claim {self.volume_claim or 'is missing'} and --mount {self.mount or 'is missing'}",
                why="a claim is mounted somewhere",
                do="--volume_claim NAME --mount /shared",
            )
        if self.name and not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", self.name):
            raise ConfigError(
                f"--name {self.name}", why="engines take lower case letters, digits and dashes", do="--name my-run"
            )


_PLAIN = re.compile(r"[\w./:@+=,~-]*"), "letters, digits and any of _ . / : @ + = , - ~"
"""Options that stand in the job file as they are, or quoted for YAML."""
_TIME = re.compile(r"[0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|INFINITE|UNLIMITED")
_VOLUME = re.compile(r"([a-z0-9]([-.a-z0-9]*[a-z0-9])?)?")
_FOLDER = re.compile(r"(/[\w.@+=~-]+)*/?")
_PATTERNS = {
    "python": (re.compile(r"(?!-)[^\x00-\x1f\x7f-\x9f]+"), "a command or the path of one, on one line"),
    "time": (_TIME, "minutes, hours:minutes:seconds or days-hours:minutes:seconds, such as 24:00:00"),
    "accelerators": (re.compile(r"[A-Za-z0-9-]*"), "the name of a kind, such as H100"),
    "volume_claim": (_VOLUME, "lower case letters, digits, dashes and dots, such as my-volume"),
    "mount": (_FOLDER, "an absolute path of letters, digits and _ . @ + = ~ -, such as /shared"),
}
"""Option -> the values that are taken and what they are, where that is not _PLAIN."""
_ENGINE_OPTIONS: dict[str, tuple[str, ...]] = {
    "slurm": ("time", "partition", "account"),
    "kubernetes": ("image", "volume_claim", "mount"),
    "skypilot": ("accelerators", "infra", "volume_claim", "mount"),
    "torchrun": (),
}
"""Engine -> the options that only some engines have."""

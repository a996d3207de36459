"""Lines that every job file shares: settings of NCCL and of the network, and the comments on them."""

from collections.abc import Sequence

from monograph.launch.job import Job
from monograph.system.foreign_text import show

STOP_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""torch's name for how long an agent waits for ranks that it asked to end, before it kills them."""
CHOICES = (
    ("NCCL_DEBUG", "WARN", "INFO says which network it found"),
    ("GLOO_SOCKET_IFNAME", "eth0", "the interface of agents and hosts, if not the one towards the first"),
    ("NCCL_SOCKET_IFNAME", "eth0", "the interface that NCCL meets over, if there are several"),
    ("NCCL_IB_HCA", "mlx5", "InfiniBand adapters to use"),
    ("FI_PROVIDER", "efa", "AWS: libfabric over EFA"),
    ("FI_EFA_USE_DEVICE_RDMA", "1", "AWS: GPUs read and write the network themselves"),
)
"""What a cluster may need: name, example, meaning. They differ from place to place, so none is set by default."""


def describe_head(job: Job) -> list[str]:
    """Comments at the top of a job file: how it was made, and the notes."""
    lines = [job.command, *(f"note: {note}" for note in job.notes)]
    return [f"# {show(line, max_length=len(line))}" for each in lines for line in each.splitlines()]


def make_choices(form: str) -> list[str]:
    """The choices as comments; `form` has places for name and value."""
    lines = [(form.format(name=name, value=value), meaning) for name, value, meaning in CHOICES]
    width = max(len(text) for text, _ in lines)
    return [f"# {text:<{width}}  # {meaning}" for text, meaning in lines]


def join_shell(lines: Sequence[Sequence[str]], indent: str = "    ") -> str:
    """A command over several lines of a shell script."""
    return f" \\\n{indent}".join(" ".join(words) for words in lines)

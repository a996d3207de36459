"""A script without a scheduler: started on every node at about the same time, with the address of the first."""

from monograph.launch.environment import STOP_VARIABLE, describe_head, join_shell, make_choices
from monograph.launch.job import Job


def render(job: Job) -> str:
    """The script."""
    if job.nodes == 1:
        head = ["HEAD=localhost"]
    else:
        head = [
            f"# On each of the {job.nodes} nodes: HEAD=address-of-the-first-node bash job.sh",
            "HEAD=${HEAD:?the address of the first node}",
        ]
    # The node that the address belongs to starts the store that all agents meet at; its name may not resolve to itself.
    agent = join_shell(job.agent(endpoint=f'"$HEAD:{job.port}"', run_id=f'"${{RUN_ID:-{job.name}}}"'))
    lines = [
        "#!/bin/bash",
        *describe_head(job),
        "set -euo pipefail",
        "",
        f"export {STOP_VARIABLE}={job.seconds_to_stop}",
        *make_choices("export {name}={value}"),
        "",
        *head,
        f"exec {agent}",
    ]
    return "\n".join(lines) + "\n"

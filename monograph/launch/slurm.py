"""A batch script for SLURM: one agent a node, requeued when the ranks were asked to stop."""

from monograph.launch.environment import STOP_VARIABLE, describe_head, join_shell, make_choices
from monograph.launch.job import EXIT_REQUEUE, Job


def render(job: Job) -> str:
    """The script, for `sbatch`."""
    options = [
        f"--job-name={job.name}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        *([f"--gpus-per-node={job.ranks_per_node}"] if job.has_gpus else []),
        "--exclusive",
        f"--time={job.time}",
        f"--signal=TERM@{job.seconds_to_save}",
        "--requeue",
        "--open-mode=append",
        "--output=%x-%j.out",
        *([f"--partition={job.partition}"] if job.partition else []),
        *([f"--account={job.account}"] if job.account else []),
        *(["--no-kill"] if job.is_elastic else []),
    ]
    agent = join_shell(job.agent(endpoint=f'"$HEAD_NODE:{job.port}"', run_id='"$RUN_ID"'))
    bad_exit = 0 if job.is_elastic else 1
    lines = [
        "#!/bin/bash",
        *describe_head(job),
        *(f"#SBATCH {option}" for option in options),
        "set -uo pipefail",
        "",
        f"export {STOP_VARIABLE}={job.seconds_to_stop}",
        *make_choices("export {name}={value}"),
        "",
        "# The nodes meet at the first of them. A requeued job is another rendezvous than the one before.",
        'HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'RUN_ID="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"',
        "",
        f"srun --kill-on-bad-exit={bad_exit} --wait={job.seconds_to_save} {agent}",
        "code=$?",
        "",
        f"# {EXIT_REQUEUE}: the ranks were asked to stop (by the time limit, or a drained node) and have saved.",
        f'if [ "$code" -eq {EXIT_REQUEUE} ]; then',
        '    scontrol requeue "$SLURM_JOB_ID"',
        "fi",
        'exit "$code"',
    ]
    return "\n".join(lines) + "\n"

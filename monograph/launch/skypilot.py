"""A task for SkyPilot's managed jobs: it finds machines, starts one agent a node, and recovers what is lost."""

from monograph.launch.environment import STOP_VARIABLE, describe_head, make_choices
from monograph.launch.job import EXIT_REQUEUE, Job
from monograph.launch.quote import quote_word, quote_yaml


def _volumes(job: Job) -> list[str]:
    """Where the run's folder lies. Not on a bucket: MOUNT_CACHED shows a node's files to the others some time later,
    and MOUNT cannot rename a folder, which is what makes a checkpoint whole or absent."""
    mark, folder = "" if job.volume_claim else "# ", quote_word(job.folder)
    return [
        f"# The run's folder, {folder}, must be on a file system that all nodes share and that outlives",
        "# them: a volume that many nodes may write to (sky volumes apply). A bucket is none; it may hold the data.",
        f"{mark}volumes:",
        f"{mark}  {quote_yaml(job.mount or '/shared')}: {quote_yaml(job.volume_claim or 'my-volume')}",
    ]


def render(job: Job) -> str:
    """The task, for `sky jobs launch`."""
    agent = [" ".join(words) for words in job.agent(endpoint=f'"$HEAD:{job.port}"', run_id='"$SKYPILOT_TASK_ID"')]
    gpus = f"{job.accelerators}:{job.ranks_per_node}"
    lines = [
        *describe_head(job),
        f"name: {quote_yaml(job.name)}",
        f"num_nodes: {job.nodes}",
        "workdir: .",
        "resources:",
        f"  accelerators: {quote_yaml(gpus)}" if job.has_gpus else "  cpus: 8+",
        *([f"  infra: {quote_yaml(job.infra)}"] if job.infra else []),
        "  network_tier: best",
        "  # use_spot: true                # cheaper, and taken away at any time; the job goes on elsewhere",
        "  job_recovery:",
        f"    max_restarts_on_errors: {job.max_restarts}",
        f"    recover_on_exit_codes: [{EXIT_REQUEUE}]",
        *_volumes(job),
        "envs:",
        '  OMP_NUM_THREADS: "1"',
        f'  {STOP_VARIABLE}: "{job.seconds_to_stop}"',
        *(f"  {line}" for line in make_choices('{name}: "{value}"')),
        "setup: |",
        "  pip install .",
        "run: |",
        '  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)',
        f"  {agent[0]} \\",
        *(f"      {line} \\" for line in agent[1:-1]),
        f"      {agent[-1]}",
    ]
    return "\n".join(lines) + "\n"

"""A TrainingRuntime and a TrainJob for Kubeflow Trainer v2; its JobSet starts one pod with one agent a node."""

import re

from monograph.launch.environment import STOP_VARIABLE, describe_head, make_choices
from monograph.launch.job import EXIT_REQUEUE, Job
from monograph.launch.quote import quote_word, quote_yaml

API = "trainer.kubeflow.org/v1alpha1"


def render(job: Job) -> str:
    """Both resources, for `kubectl apply`."""
    return "\n".join([*describe_head(job), *_runtime(job), "---", *_train_job(job)]) + "\n"


def _runtime(job: Job) -> list[str]:
    """How the job's pods look: restarts, exit codes, volumes, shared memory."""
    claim = [
        "                    - name: shared",
        "                      persistentVolumeClaim:",
        f"                        claimName: {quote_yaml(job.volume_claim)}",
    ]
    mount = ["                        - name: shared", f"                          mountPath: {quote_yaml(job.mount)}"]
    return [
        f"apiVersion: {API}",
        "kind: TrainingRuntime",
        "metadata:",
        f"  name: {quote_yaml(job.name)}",
        "  labels:",
        "    trainer.kubeflow.org/framework: torch",
        "spec:",
        "  mlPolicy:",
        f"    numNodes: {job.nodes}",
        "    torch: {}",
        "  template:",
        "    spec:",
        "      failurePolicy:",
        f"        maxRestarts: {job.max_restarts}",
        "      replicatedJobs:",
        "        - name: node",
        "          template:",
        "            metadata:",
        "              labels:",
        "                trainer.kubeflow.org/trainjob-ancestor-step: trainer",
        "            spec:",
        f"              backoffLimit: {job.max_restarts * job.nodes}",
        f"              # {EXIT_REQUEUE}: asked to stop, and saved. That is no failure, nor is a drained node.",
        "              podFailurePolicy:",
        "                rules:",
        "                  - action: Ignore",
        "                    onPodConditions:",
        "                      - type: DisruptionTarget",
        '                        status: "True"',
        "                  - action: Ignore",
        "                    onExitCodes:",
        "                      containerName: node",
        "                      operator: In",
        f"                      values: [{EXIT_REQUEUE}]",
        "              template:",
        "                spec:",
        "                  restartPolicy: Never",
        f"                  terminationGracePeriodSeconds: {job.seconds_to_save}",
        "                  containers:",
        "                    - name: node",
        f"                      image: {quote_yaml(job.image)}",
        "                      volumeMounts:",
        "                        - name: shm",
        "                          mountPath: /dev/shm",
        *(mount if job.volume_claim else []),
        "                  volumes:",
        "                    - name: shm",
        "                      emptyDir:",
        "                        medium: Memory",
        *(claim if job.volume_claim else []),
    ]


def _keep_dollars(shell: str) -> str:
    """The text as Kubernetes gives it to the shell: in a command it replaces $(NAME) and writes $$ as one sign."""
    return re.sub(r"\$(?=[$(])", "$$", shell)


def _train_job(job: Job) -> list[str]:
    """The job itself. The runtime's torch policy sets PET_MASTER_ADDR and PET_MASTER_PORT in every pod."""
    agent = job.agent(endpoint='"$PET_MASTER_ADDR:$PET_MASTER_PORT"', run_id=quote_word(job.name))
    shell = [_keep_dollars(" ".join(words)) for words in agent]
    body = [f"{text} \\" for text in shell[:-1]] + [shell[-1]]
    gpus = [
        "    resourcesPerNode:",
        "      requests:",
        f"        nvidia.com/gpu: {job.ranks_per_node}",
        "      limits:",
        f"        nvidia.com/gpu: {job.ranks_per_node}",
    ]
    return [
        f"apiVersion: {API}",
        "kind: TrainJob",
        "metadata:",
        f"  name: {quote_yaml(job.name)}",
        "spec:",
        "  runtimeRef:",
        "    apiGroup: trainer.kubeflow.org",
        "    kind: TrainingRuntime",
        f"    name: {quote_yaml(job.name)}",
        "  trainer:",
        f"    image: {quote_yaml(job.image)}",
        f"    numNodes: {job.nodes}",
        *(gpus if job.has_gpus else []),
        "    env:",
        f"      - name: {STOP_VARIABLE}",
        f'        value: "{job.seconds_to_stop}"',
        *(f"      {line}" for line in make_choices('- {{name: {name}, value: "{value}"}}')),
        "    command:",
        "      - /bin/bash",
        "      - -c",
        "      - |",
        *(f"        {'' if index == 0 else '    '}{line}" for index, line in enumerate([f"exec {body[0]}", *body[1:]])),
    ]

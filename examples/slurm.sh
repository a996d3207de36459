#!/bin/bash
# Train on several nodes under Slurm: one torchrun a node, one rank a GPU.
#
#     sbatch examples/slurm.sh
#
# The dump folder must be on a file system that all nodes share. --checkpoint.load auto continues from the newest good
# checkpoint, or starts from scratch when there is none, so the job may be requeued as often as the scheduler likes.
# Two minutes before the time limit Slurm sends SIGTERM: the ranks finish their step, save, and leave with exit code 75.
#
# Checked: the torchrun command, on one machine with several ranks. Not checked: several nodes, for want of them.
#SBATCH --job-name=monograph
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

RECIPE=${RECIPE:-llama3_8b}
FOLDER=${FOLDER:-$PWD/outputs/$RECIPE}
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

srun .venv/bin/torchrun \
    --nnodes "$SLURM_NNODES" \
    --nproc-per-node "$SLURM_GPUS_PER_NODE" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$HEAD_NODE:29500" \
    --rdzv-id "$SLURM_JOB_ID" \
    -m monograph train "$RECIPE" \
    --job.dump_folder "$FOLDER" \
    --checkpoint.load auto \
    "$@"

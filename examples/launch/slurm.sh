#!/bin/bash
# monograph launch llama3_8b --on slurm --nodes 2 --gpus_per_node 8 --time 12:00:00
# note: parameters and optimizer state take 6.0 of 80 GB on H100 (--machine names another); monograph inspect estimates the whole step
# note: 570 s to stop: a step, and two checkpoints of 48.2 GB a node, written and read back at 0.5 GB/s; --seconds_to_save N for slower storage or longer steps
#SBATCH --job-name=llama3-8b
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@570
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
set -uo pipefail

export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=540
# export NCCL_DEBUG=WARN           # INFO says which network it found
# export GLOO_SOCKET_IFNAME=eth0   # the interface of agents and hosts, if not the one towards the first
# export NCCL_SOCKET_IFNAME=eth0   # the interface that NCCL meets over, if there are several
# export NCCL_IB_HCA=mlx5          # InfiniBand adapters to use
# export FI_PROVIDER=efa           # AWS: libfabric over EFA
# export FI_EFA_USE_DEVICE_RDMA=1  # AWS: GPUs read and write the network themselves

# The nodes meet at the first of them. A requeued job is another rendezvous than the one before.
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
RUN_ID="$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"

srun --kill-on-bad-exit=1 --wait=570 python -P -m monograph.launch.agent \
    --nnodes 2 --nproc-per-node 8 \
    --rdzv-backend c10d --rdzv-endpoint "$HEAD_NODE:29500" --rdzv-id "$RUN_ID" \
    --max-restarts 3 --log-dir outputs/llama3_8b/logs \
    -m monograph train llama3_8b --job.dump_folder outputs/llama3_8b --debug.device cuda --checkpoint.load auto
code=$?

# 75: the ranks were asked to stop (by the time limit, or a drained node) and have saved.
if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"

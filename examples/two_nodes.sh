#!/bin/bash
# Train on two (or more) machines without a scheduler: run this on each of them, at about the same time.
#
#     HEAD=10.0.0.1 NODES=2 NODE=0 examples/two_nodes.sh llama3_8b --parallelism.tensor_parallel_degree 8    # on 10.0.0.1
#     HEAD=10.0.0.1 NODES=2 NODE=1 examples/two_nodes.sh llama3_8b --parallelism.tensor_parallel_degree 8    # on the other
#
# All machines need the same code, the same words, and the dump folder on a file system that they share. With 2 x 8 GPUs and
# tp 8 the mesh becomes fsdp 2 x tp 8: neighbouring ranks are tensor-parallel peers, so what talks most stays inside a
# machine. Try the plan first: `monograph verify` with the same flags and a debug recipe, on one machine with --ranks 16.
# Ctrl-C (or SIGTERM) on any one machine stops all: they finish the step together and save. Started again, they continue.
#
# Checked: two of these on one machine, with ranks on the CPU. Not checked: a real network between them.
set -euo pipefail

RECIPE=${1:?usage: examples/two_nodes.sh RECIPE [--section.field value ...]}
shift
FOLDER=${FOLDER:-$PWD/outputs/$RECIPE}

exec "${TORCHRUN:-.venv/bin/torchrun}" \
    --nnodes "${NODES:-2}" \
    --node-rank "${NODE:?the number of this machine: 0, 1, ...}" \
    --nproc-per-node "${RANKS:-8}" \
    --master-addr "${HEAD:?the address of machine 0}" \
    --master-port "${PORT:-29500}" \
    -m monograph train "$RECIPE" \
    --job.dump_folder "$FOLDER" \
    --checkpoint.load auto \
    "$@"

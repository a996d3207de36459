"""What a rank does for the fuzzer of graph mode: the same updates in graph mode and in eager mode, compared."""

import os

from torch import Tensor

from monograph.execute.base import MeshStep
from monograph.parallel.groups import Groups, joined_groups
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients, apply_update
from tests.execute.updates import CPU, buffers_of, digest
from tests.parallel.rank_work import read_batches

UPDATES = 2
PREFERRED = 100.0
"""A selection bias that no score can make up for."""


def compare_modes(graph: TrainerConfig, eager: TrainerConfig) -> list[str]:
    """On one rank: the tensors that differ between the two, by update and name."""
    mesh = plan_run_mesh(graph, int(os.environ.get("WORLD_SIZE", "1")))
    with joined_groups(mesh, CPU, timeout_seconds=graph.parallelism.timeout_seconds) as groups:
        found, wanted = make_updates(graph, groups), make_updates(eager, groups)
    return [name for name in wanted if found.get(name) != wanted[name]] + [name for name in found if name not in wanted]


def make_updates(config: TrainerConfig, groups: Groups) -> dict[str, str]:
    """Digests of every loss, gradient, weight and buffer of a few updates; routing is pushed to one side meanwhile."""
    step = build_step(config, groups)
    optimizer = config.optimizer.build(parameters=step.parameters, weight_cache=step.weight_cache)
    seen: dict[str, str] = {}
    for number, batches in enumerate(read_batches(config, step, UPDATES)):
        push_routing(step, number)
        shown = batches[0].tensors
        evaluated = step.evaluate(shown, step.compute_scalars([shown]))
        loss = add_gradients(step, batches)
        gradients = {f"gradient {name}": _wide(value.grad) for name, value in step.parameters.items()}
        seen |= _numbered(number, {"evaluation": evaluated, "loss": loss, **gradients, **buffers_of(step)})
        updated = apply_update(step, optimizer, loss=loss, lr=0.01, max_norm=config.training.max_norm)
        weights = {f"updated {name}": value for name, value in step.parameters.items()}
        seen |= _numbered(number, {"norm": updated.grad_norm, **weights, **buffers_of(step, "after")})
    step.close()
    return seen


def push_routing(step: MeshStep, number: int) -> None:
    """Send all tokens to the first experts, then to the last: the sizes of exchanges are as uneven as they can be."""
    for block in step.model.blocks().values():
        bias = None if block.moe is None else block.moe.router.expert_bias
        if bias is not None:
            bias.zero_()
            half = bias[: len(bias) // 2] if number % 2 == 0 else bias[len(bias) // 2 :]
            half.fill_(PREFERRED)


def _wide(gradient: Tensor | None) -> Tensor:
    """Gradients may leave a graph in fewer bits than eager mode stores them in; their values are the same."""
    assert gradient is not None
    return gradient.float()


def _numbered(number: int, tensors: dict[str, Tensor]) -> dict[str, str]:
    return {f"{number} {name}": value for name, value in digest(tensors).items()}

"""What ranks do in the tests of pipelines: updates from a config, with everything that can be compared."""

import os
from contextlib import nullcontext
from dataclasses import dataclass, field
from unittest.mock import patch

import torch

from monograph.axes import POINT_TO_POINT, Group
from monograph.compat.ops import find_process_group
from monograph.execute.device import deterministic_kernels, use_device
from monograph.execute.pipeline.runtime import PipelineRun
from monograph.execute.pipeline.step import PipelineStep
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh_reductions import compute_grad_norm
from monograph.parallel.param_table import ParamTable
from monograph.run import build_step, train
from monograph.train.data.cursor import Cursor
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients, apply_update
from tests.execute.artifacts import nothing_made
from tests.kit.replayed_ops import ReplayedOps

OBSERVED = 2
"""The update that replays nothing, as when ranks are timed or checked."""
EMBEDDING, OUTPUT = "embedding.weight", "head.output.weight"


@dataclass
class Updates:
    """The numbers of a few updates on one rank."""

    losses: list = field(default_factory=list)
    norms: list = field(default_factory=list)
    metrics: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)
    parameters: dict = field(default_factory=dict)
    buffers: dict = field(default_factory=dict)
    recordings: int = 0
    """Actions that were replayed."""
    links: str = ""
    """The backend of sends and receives."""
    bubble: float = 0.0
    """Of the last update, of the rank that waited longest."""


def make_updates_from_artifact(config, count):
    """Updates in a process that captures and compiles nothing."""
    with nothing_made():
        return make_updates(config, count)


def make_updates(config, count, is_tied_apart=False, is_replayed=False):
    """Updates with clipping, as the trainer makes them, from `config`'s own data.

    With `is_replayed` the actions of a pipeline are recorded and replayed as on a GPU, also where there is none.
    With `is_tied_apart` the model has two matrices in place of a tied one, with the same values: each sums its own
    gradient over an update, and both get the sum. What a pipeline promises for tied slots, made by hand.
    """
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    device = use_device(config.debug.device)
    recorder = (
        patch("monograph.run.make_recorder", lambda *_: ReplayedOps(is_required=True)) if is_replayed else nullcontext()
    )
    with deterministic_kernels(True), joined_groups(mesh, device, timeout_seconds=60) as groups:
        with recorder:
            step = build_step(config, groups)
        try:
            found = _make_updates(step, config, count, is_tied_apart)
            if isinstance(step, PipelineStep):
                found.recordings = len(step.recorded.actions) if step.recorded is not None else 0
                found.links = describe_links()
            return found
        finally:
            step.close()


def describe_links():
    """The backend of both directions of a pipeline, where each has a process group of its own."""
    found = {group.value: find_process_group(group.value) for group in (Group.PP, Group.PP_UP, Group.PP_DOWN)}
    assert len({id(each) for each in found.values()}) == len(found), "sends share a group with collectives"
    return ", ".join(sorted({str(found[group.value].name()) for group in POINT_TO_POINT}))


def _make_updates(step, config, count, is_tied_apart):
    found = Updates()
    if is_tied_apart:
        with torch.no_grad():
            step.parameters[OUTPUT].copy_(step.parameters[EMBEDDING])
    optimizer = config.plan_optimizer().build(parameters=step.trained, weight_cache=step.weight_cache)
    part, parts = step.data_part
    sizes = {
        "local_batch_size": config.training.local_batch_size,
        "global_batch_size": config.training.global_batch_size,
    }
    with open_data(config).batches(Cursor(), **sizes, part=part, parts=parts) as batches:
        for number in range(count):
            chosen = [next(batches) for _ in range(sizes["global_batch_size"] // sizes["local_batch_size"] // parts)]
            with step.op_by_op() if number == OBSERVED else nullcontext():
                loss = add_gradients(step, chosen)
            if is_tied_apart:
                add_tied(step)
            updated = apply_update(step, optimizer, loss=loss, lr=0.01, max_norm=1.0)
            found.losses.append(loss.item())
            found.norms.append(updated.grad_norm.item())
            found.metrics.append({name: value.cpu().clone() for name, value in updated.metrics.items()})
        if config.validator.interval:
            held_out = [next(batches).tensors for _ in range(3)]
            scalars = step.compute_scalars(held_out)
            found.evaluations.append(step.total_loss(step.evaluate_all(held_out, scalars)).item())
    found.parameters = {name: value.detach().cpu().clone() for name, value in step.parameters.items()}
    found.buffers = {name: value.cpu().clone() for name, value in step.model.named_buffers() if "coords" not in name}
    if isinstance(step, PipelineStep):
        assert not step.losses and step.times.busy_seconds > 0
        for metrics in found.metrics:
            bubbles = metrics.pop("pipeline_bubble")
            is_known = step.device.type == "cpu" or metrics is found.metrics[-1]
            assert bubbles.shape == (step.schedule.ranks,) and (bubbles < 1).all()
            assert not is_known or (bubbles > 0).all()
            found.bubble = bubbles.max().item()
    return found


def add_tied(step):
    """Both copies of a tied matrix get the sum; the gradient norm counts it once."""
    parameters = step.parameters
    total = parameters[EMBEDDING].grad + parameters[OUTPUT].grad
    parameters[EMBEDDING].grad, parameters[OUTPUT].grad = total, total.clone()
    counted = ParamTable([slot for slot in step.table if slot.name != OUTPUT], step.table.mesh)
    norm = compute_grad_norm(counted, {name: value.grad for name, value in step.trained.items()})
    step.grad_norm = lambda: norm


def open_data(config):
    return config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.find_vocab_size(),
        seed=1,
        split="train",
    )


def train_once(config):
    """A whole run, as one of its ranks."""
    summary = train(config)
    return summary.steps


def train_into_fault(config, victim, action, number, folder):
    """A run in which a rank gets a signal when it begins an action of the second update; survivors note their error."""
    compute, updates = PipelineRun.compute, []
    train_on = PipelineStep.train_on
    rank = int(os.environ["RANK"])

    def count(step, *args):
        updates.append(1)
        return train_on(step, *args)

    def fail(run, part):
        if rank == victim and len(updates) == 2 and str(part) == action:
            os.kill(os.getpid(), number)
        compute(run, part)

    with patch.object(PipelineRun, "compute", fail), patch.object(PipelineStep, "train_on", count):
        try:
            train(config)
        except Exception as error:
            (folder / f"rank-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
            raise

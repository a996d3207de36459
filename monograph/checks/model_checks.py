"""Whether a model keeps what the protocol promises: what can be tried in one process, on a CPU."""

import inspect
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from monograph.axes import Axis
from monograph.bench import draw_batch
from monograph.capture.capture import capture
from monograph.checks.captured_model import CPU, alone, as_rank
from monograph.checks.numbers import find_differences
from monograph.checks.pass_checks import CheckRow
from monograph.config.configurable import check_config
from monograph.config.references import describe_exception
from monograph.errors import ConfigError, MonographError
from monograph.execute.base import MeshStep
from monograph.models.hf_families import find_family_of
from monograph.models.hf_tensors import export_tensors, import_tensors
from monograph.models.init import initialize
from monograph.models.model import Model, find_scalars
from monograph.models.sequence_part import WHOLE
from monograph.parallel.check_plan import check_plan
from monograph.parallel.groups import find_first_difference
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import build_table
from monograph.plurals import counted
from monograph.run import build_source, build_step, make_example
from monograph.train.build_model import build_model
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh


class ModelRefused(Exception):
    """A promise that a model does not keep; the text says which."""


def check_model(config: TrainerConfig) -> Iterator[CheckRow]:
    """One row for every check, in order; after one that was refused there are no more."""
    for name, check in CHECKS.items():
        try:
            note = check(config)
        except ModelRefused as refused:
            yield CheckRow("", name, "refused", str(refused))
            return
        except MonographError as error:
            yield CheckRow("", name, "refused", ": ".join(part for part in (error.what, error.why) if part))
            return
        except Exception as error:
            yield CheckRow("", name, "refused", describe_exception(error))
            return
        yield CheckRow(
            "", name, "ok" if note else "not tested", note or "the model has no Hugging Face map: set `hf` in its class"
        )


def find_axes(config: TrainerConfig) -> list[Axis]:
    """The axes that the model's plan shards parameters over."""
    plan = build_whole(config).parallel_plan()
    used = {cut.axis for rule in plan.parameters for cut in rule.cuts}
    return [axis for axis in (Axis.TP, Axis.EP) if axis in used]


def build_whole(config: TrainerConfig) -> Model:
    """The model without memory."""
    with torch.device("meta"):
        model = config.model.build()
    if not isinstance(model, Model):
        raise ModelRefused(f"{type(model).__qualname__} does not derive from monograph.Model")
    return model


def check_description(config: TrainerConfig) -> str:
    """It can be built, its units exist and hold every parameter, and forward takes what it says it reads."""
    check_config(config)
    model = build_whole(config)
    units = model.units()
    paths = [unit.path for unit in units]
    known = dict(model.named_modules())
    for path in paths:
        if path not in known:
            raise ModelRefused(f"units() has {path}, and the model has no such module")
        if paths.count(path) > 1:
            raise ModelRefused(f"units() has {path} twice")
    build_table(model, model.parallel_plan(), Mesh())
    model.plan_parameters()
    batch = draw_batch(config, model.batch_spec, torch.Generator().manual_seed(0))
    names = [*model.step_inputs(batch, WHOLE), *find_scalars(model)]
    try:
        inspect.signature(model.forward).bind(**dict.fromkeys([*names, "call"]))
    except TypeError as error:
        raise ModelRefused(
            f"forward cannot be called with {', '.join(names)} and call, which batch_spec, step_inputs, "
            f"normalizers and draws_random name: {error}"
        ) from None
    blocks = sum(unit.is_block for unit in units)
    count = sum(parameter.numel() for parameter in model.parameters())
    flops = model.flops(config.training.seq_len).full_attention
    parts = f"{counted(len(units), 'unit')} of which {blocks} are blocks"
    return f"{count:,} parameters, {parts}, {flops / 1e6:.3g} MFLOP per token"


def check_parallel_plan(config: TrainerConfig) -> str:
    """The plan has no rule for nothing, and no boundary around something that is whole."""
    model, axes = build_whole(config), find_axes(config)
    check_plan(model, model.parallel_plan(), Mesh(tp=2) if Axis.TP in axes else Mesh())
    return f"shards over fsdp{''.join(f', {axis.value}' for axis in axes)}"


def check_capture(config: TrainerConfig) -> str:
    """The step can be captured, and all ranks capture the same."""
    degree = 2 if Axis.TP in find_axes(config) else 1
    changed = config.parallelism.replace(data_parallel_shard_degree=2, tensor_parallel_degree=degree)
    config = config.replace(parallelism=changed)
    mesh = plan_run_mesh(config, 2 * degree)
    texts = []
    for rank in (0, mesh.world_size - 1):
        with as_rank(rank, mesh) as groups:
            source, _ = build_source(config, groups)
            texts.append(capture(source, make_example(config, source)).text(folded=False))
    if texts[0] != texts[1]:
        raise ModelRefused(f"ranks capture different steps: {find_first_difference(*texts)}")
    lines = counted(len(texts[0].splitlines()), "line")
    return f"{lines}, the same on ranks 0 and {mesh.world_size - 1} of {mesh.world_size}"


def check_bits(config: TrainerConfig) -> str:
    """The captured step computes what the modules compute, bit for bit."""
    eager = config.replace(
        compile=config.compile.replace(mode="eager"), parallelism=config.parallelism.replace(fsdp="graph")
    )
    with alone() as groups:
        results = [run_once(build_step(each, groups), config) for each in (eager, config)]
    differences = find_differences(*results)
    if differences:
        raise ModelRefused(f"graph mode and eager mode differ: {differences[0]}")
    unused = [name for name, value in results[0].items() if not value.any()]
    note = f"; the gradient of {unused[0]} is zero" if unused else ""
    return f"loss and {len(results[0]) - 1} gradients equal bit for bit{note}"


def run_once(step: MeshStep, config: TrainerConfig) -> dict[str, Tensor]:
    """Loss and gradients of one random micro-batch."""
    generator = torch.Generator().manual_seed(config.debug.seed)
    batch = draw_batch(config, step.model.batch_spec, generator)
    loss = step(batch, step.compute_scalars([batch]))
    if not loss.isfinite():
        raise ModelRefused(f"the loss of a random batch is {loss.item()}")
    found = {name: p.grad.clone() for name, p in step.parameters.items() if p.grad is not None}
    step.close()
    return {"loss": loss, **found}


def check_hf_map(config: TrainerConfig) -> str:
    """Every tensor goes to Hugging Face's names and back; so does the config."""
    if build_whole(config).hf is None:
        return ""
    family = find_family_of(config.model)
    model = build_model(config, CPU).to_empty(device=CPU)
    initialize(model, config.debug.seed)
    own = dict(model.named_parameters())
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False) if name not in own}
    state = {name: value for name, value in model.state_dict().items() if name not in aliases}
    entries = family.entries(config.model)
    listed = {entry.ours for entry in entries}
    for name in state.keys() ^ listed:
        where = "the map does not name it" if name in state else "the model has no such tensor"
        raise ModelRefused(f"the Hugging Face map and the model differ: {name}: {where}")
    again = import_tensors(entries, export_tensors(entries, state))
    if differences := find_differences(state, again):
        raise ModelRefused(f"a round trip through Hugging Face's names changed {differences[0].name}")
    written = family.to_hf_config(config.model)
    read = family.from_hf_config(written)
    if written != family.to_hf_config(read):
        raise ModelRefused("config.json changes when it is read and written again")
    if written.get("model_type") not in family.MODEL_TYPES:
        raise ConfigError(
            f"to_hf_config writes model_type {written.get('model_type')!r}",
            why=f"MODEL_TYPES is {', '.join(family.MODEL_TYPES)}, so it could not be imported again",
        )
    return f"{counted(len(entries), 'tensor')} and config.json there and back"


CHECKS: dict[str, Callable[[TrainerConfig], str]] = {
    "description": check_description,
    "parallel plan": check_parallel_plan,
    "capture": check_capture,
    "graph == eager": check_bits,
    "Hugging Face": check_hf_map,
}
"""Name -> check; an empty answer means that there was nothing to try."""

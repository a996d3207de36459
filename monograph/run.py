"""The whole flow on one screen: config -> model -> parallelize -> step -> train loop. Each arrow is a return value."""

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.utils.deterministic as deterministic
from torch import Tensor

from monograph.compat.ops import has_native_matmul
from monograph.config.json_form import dump_json
from monograph.errors import ConfigError
from monograph.execute.artifact.open import is_refused, open_artifact, use_together
from monograph.execute.base import MeshStep, StepSettings
from monograph.execute.fsdp2 import Fsdp2Step
from monograph.execute.runner import GraphStep
from monograph.execute.sharded import ShardedStep
from monograph.log import get_log, set_up_log
from monograph.models.decoder import Decoder
from monograph.models.init import Start, plan_init, reset
from monograph.parallel.apply import parallelize
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.param_table import build_table
from monograph.parallel.plan import DECODER_PLAN
from monograph.train.command_line import CommandLine
from monograph.train.config import TrainerConfig
from monograph.train.flops import count_flops
from monograph.train.folder import RunFolder, claimed_folder
from monograph.train.layout import plan_run_mesh
from monograph.train.numerics import promise_numerics
from monograph.train.signals import StoppedOnRequest
from monograph.train.startup import Startup
from monograph.train.summary import print_summary
from monograph.train.trainer import Summary, Trainer

log = get_log("run")


def build_model(config: TrainerConfig, device: torch.device) -> Decoder:
    """The model's structure: parameters on the meta device (shards come later), buffers real, in their first state."""
    with torch.device("meta"):
        model: Decoder = config.model.build()
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))
    reset(model)
    return model


def build_step(config: TrainerConfig, groups: Groups, startup: Startup | None = None) -> MeshStep:
    """What `train`, `verify`, `precompile` and `inspect` run: one path that cannot drift."""
    startup = startup or Startup()
    artifact = None
    if config.compile.artifact:
        with startup.phase("artifact"):
            artifact = open_artifact(config, config.compile, groups)
    with startup.phase("model"):
        model = build_model(config, groups.device)
        settings = make_settings(config, plan_init(model))
        if not groups.is_fake:
            warn_of_slow_matmuls(groups.device, settings.compute_dtype)
        table = build_table(model, DECODER_PLAN, groups.mesh)
        parallelize(model, DECODER_PLAN, groups.mesh, groups.coords())
        if config.compile.mode != "graph":
            kind = ShardedStep if config.parallelism.fsdp == "graph" else Fsdp2Step
            return kind(model, table, groups, settings)
        step = GraphStep(model, table, groups, settings)
    example = make_example(config, step)
    if artifact is not None:
        with startup.phase("artifact"):
            specs = step.schema(*example)
            found = artifact.misfits(table, specs, groups.device)
            if not is_refused(config.compile, found, groups):
                use_together(partial(step.use, artifact, specs), groups)
    if not groups.is_fake:
        with startup.phase("graph"):
            step.build(*example)
    return step


def make_settings(config: TrainerConfig, starts: Mapping[str, Start]) -> StepSettings:
    """How the step computes, besides the model and the mesh."""
    return StepSettings(
        dtype=getattr(torch, config.training.dtype),
        compute_dtype=getattr(torch, config.training.compute_dtype),
        reduce_dtype=getattr(torch, config.parallelism.reduce_dtype),
        reshard=config.parallelism.reshard_after_forward,
        starts=starts,
        seed=config.debug.seed,
        is_single_pass=config.plan_optimizer().implementation == "single_pass",
        remat=config.activation_checkpoint.mode,
        compile=config.compile,
        passes=config.passes,
    )


def warn_of_slow_matmuls(device: torch.device, dtype: torch.dtype) -> None:
    """Say in words what torch says later, with the stack of its C++: a step that takes minutes looks like a hang."""
    if has_native_matmul(device, dtype):
        return
    log.warning(
        "this CPU has no native %s matmul: steps may take a hundred times as long as with "
        "--training.compute_dtype float32",
        str(dtype).removeprefix("torch."),
    )
    warnings.filterwarnings("ignore", "mkldnn_matmul failed.*needs a cpu with bf16 support", UserWarning)


def make_example(config: TrainerConfig, step: MeshStep) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A batch of the form that training reads, and its normalizers; their values do not matter."""
    shape = (config.training.local_batch_size, config.training.seq_len)
    names = ("tokens", "labels", "positions", "documents")
    batch = {name: torch.zeros(shape, dtype=torch.int64, device=step.device) for name in names}
    ones = {name: torch.ones((), dtype=torch.int64, device=step.device) for name in step.model.normalizers}
    return step.inputs(batch), ones


def build_trainer(config: TrainerConfig, groups: Groups, startup: Startup, folder: RunFolder) -> Trainer:
    """Data first, because its mistakes are the user's and should show before minutes go into a model."""
    with startup.phase("data"):
        tokenizer = config.tokenizer.build()
        data = config.dataloader.build(
            tokenizer=tokenizer,
            seq_len=config.training.seq_len,
            vocab_size=config.model.vocab_size,
            seed=config.debug.seed,
            split="train",
        )
        held_out = data.with_split("validation") if config.validator.interval else None
    step = build_step(config, groups, startup)
    promise = promise_numerics(config, ran=step.ran_passes, device=groups.device.type)
    folder.write_numerics(promise)
    with startup.phase("model"):
        with torch.device("meta"):
            whole = config.model.build()
        flops = count_flops(whole, config.training.seq_len)
        count = sum(parameter.numel() for parameter in whole.parameters())
    log.info("model: %s parameters on %s", f"{count:,}", describe(groups))
    log.info("numerics: %s", promise)
    with startup.phase("trainer"):
        trainer: Trainer = config.build(
            step=step, data=data, held_out=held_out, folder=folder, startup=startup, flops=flops, groups=groups
        )
        trainer.load()
    return trainer


def describe(groups: Groups) -> str:
    """The devices of this run in words."""
    mesh = groups.mesh
    if mesh.world_size == 1:
        return str(groups.device)
    names = ("dp_replicate", "dp_shard", "tp", "ep", "etp")
    degrees = [f"{name} {getattr(mesh, name)}" for name in names if getattr(mesh, name) > 1]
    return f"{mesh.world_size} x {groups.device.type} ({', '.join(degrees)})"


def train(config: TrainerConfig) -> Summary:
    """Train as the config says, as one of the ranks a launcher started; the library's form of `monograph train`."""
    startup = Startup()
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    with deterministic_kernels(config.debug.deterministic):
        with startup.phase("set-up"):
            device = find_device(config.debug.device)
        limit = config.parallelism.timeout_seconds
        with joined_groups(mesh, device, timeout_seconds=limit) as groups, ExitStack() as stack:
            with startup.phase("set-up"):
                groups.check_same("the configuration", dump_json(config))
                folder = stack.enter_context(claimed_folder(config, groups))
                set_up_log(level=config.debug.log_level, file=folder.path / "logs" / f"rank-{groups.rank}.log")
                folder.write_config(config)
            trainer = build_trainer(config, groups, startup, folder)
            try:
                return trainer.train()
            finally:
                trainer.step.close()


def train_command(config: TrainerConfig, line: CommandLine) -> int:
    """`monograph train`: train, then tell a person what happened and what to try next."""
    set_up_log(level=config.debug.log_level)
    try:
        summary = train(config)
    except StoppedOnRequest as stopped:
        if not stopped.do:
            raise
        raise StoppedOnRequest(stopped.what, do=f"to continue: {line.render({'checkpoint.load': 'latest'})}") from None
    if summary.is_rank_zero:
        print_summary(summary, config, line)
    return 0


def find_device(wanted: str) -> torch.device:
    """The device to train on; asking for a GPU that is not there is an error, not a slow run."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("debug.device is cuda", why="torch sees no CUDA device here", do="--debug.device cpu")
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


@contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Only deterministic kernels inside; every setting is put back afterwards."""
    if not wanted:
        yield
        return
    fill: Any = deterministic  # its attributes are set at run time, unknown to type checkers
    before = torch.are_deterministic_algorithms_enabled(), fill.fill_uninitialized_memory
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace or ":4096:8"
    torch.use_deterministic_algorithms(True)
    fill.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        fill.fill_uninitialized_memory = before[1]
        if workspace is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]

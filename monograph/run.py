"""The whole flow on one screen: config -> model -> step -> train loop. Each arrow is a return value."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from monograph.config.json_form import to_json
from monograph.errors import ConfigError
from monograph.execute.eager import EagerStep
from monograph.log import find_rank, get_log, set_up_log
from monograph.models.decoder import Decoder
from monograph.models.init import initialize, materialize
from monograph.train.config import TrainerConfig
from monograph.train.flops import count_flops
from monograph.train.folder import claim_folder, write_config
from monograph.train.startup import Startup
from monograph.train.step import Step
from monograph.train.summary import print_summary
from monograph.train.trainer import Summary, Trainer

log = get_log("run")


def build_model(config: TrainerConfig, device: torch.device) -> Decoder:
    """The model with its initial weights: shaped without memory first, then filled on the device."""
    with torch.device("meta"):
        model = config.model.build()
    materialize(model, device=device, dtype=getattr(torch, config.training.dtype))
    initialize(model, seed=config.debug.seed)
    return model


def build_step(config: TrainerConfig, device: torch.device) -> Step:
    """What `train` runs, and later `precompile`, `inspect` and `verify` as well: one path that cannot drift."""
    model = build_model(config, device)
    return EagerStep(model, compute_dtype=getattr(torch, config.training.compute_dtype), device=device)


def build_trainer(config: TrainerConfig) -> Trainer:
    """Data first, because its mistakes are the user's and should show before minutes go into a model."""
    startup = Startup()
    with startup.phase("set-up"):
        device = find_device(config.debug.device)
        folder = claim_folder(Path(config.job.dump_folder), is_resuming=bool(config.checkpoint.load))
        set_up_log(level=config.debug.log_level, file=folder / "logs" / f"rank-{find_rank()}.log")
        write_config(config, folder)
    with startup.phase("data"):
        tokenizer = config.tokenizer.build()
        wanted = {"tokenizer": tokenizer, "seq_len": config.training.seq_len, "vocab_size": config.model.vocab_size}
        data = config.dataloader.build(**wanted, seed=config.debug.seed, split="train")
        held_out = None
        if config.validator.interval:
            held_out = data.with_split("validation")
    with startup.phase("model"):
        step = build_step(config, device)
        with torch.device("meta"):
            flops = count_flops(config.model.build(), config.training.seq_len)
    log.info("model: %s parameters on %s; data: %s", f"{count(step):,}", device, data.description)
    with startup.phase("trainer"):
        trainer: Trainer = config.build(
            step=step, data=data, held_out=held_out, folder=folder, startup=startup, flops=flops, run=to_json(config)
        )
        trainer.load()
    return trainer


def count(step: Step) -> int:
    """How many numbers are being trained."""
    return sum(parameter.numel() for parameter in step.parameters.values())


def train(config: TrainerConfig) -> Summary:
    """Train as the config says and return what happened; the library's form of `monograph train`."""
    with deterministic_kernels(config.debug.deterministic):
        return build_trainer(config).train()


def train_command(config: TrainerConfig) -> int:
    """`monograph train`: train, then tell a person what happened and what to try next."""
    set_up_log(level=config.debug.log_level)
    print_summary(train(config), config)
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
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = workspace or ":4096:8"
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]
        if workspace is None:
            del os.environ["CUBLAS_WORKSPACE_CONFIG"]

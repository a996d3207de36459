"""Runs small enough for a test: tiny models, short sequences, and ways to look at what a run left behind."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from monograph.config.configurable import check_config
from monograph.models.config import (
    AttentionConfig,
    FeedForwardConfig,
    LatentAttentionConfig,
    MoeConfig,
    RopeConfig,
    RouterConfig,
)
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.gemma2.sizes import gemma2_debugmodel
from monograph.models.gemma3.sizes import gemma3_debugmodel
from monograph.models.gpt_oss.sizes import gpt_oss_debugmodel
from monograph.models.llama3.config import Llama3Config
from monograph.models.llama3.model import Llama3
from monograph.models.llama4.sizes import llama4_debugmodel
from monograph.parallel.groups import joined_groups
from monograph.recipes.starting_points import make_debug_run
from monograph.run import build_trainer
from monograph.train import records
from monograph.train.config import TrainerConfig
from monograph.train.folder import reserved_folder
from monograph.train.layout import plan_run_mesh
from monograph.train.startup import Startup
from monograph.train.trainer import Trainer
from tests.kit.tiny import SHARED_FOLDER, write_corpus

EXACT = ("step", "loss", "grad_norm", "lr", "tokens", "cursor", "expert_load", "validation_loss")
"""What a record says about the training itself; the rest is about the machine."""


def tiny_llama3() -> Llama3Config:
    return Llama3Config(
        vocab_size=260,
        dim=64,
        n_layers=2,
        rope=RopeConfig(max_seq_len=64),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        feed_forward=FeedForwardConfig(hidden_dim=128),
    )


def tiny_deepseek_v3() -> DeepseekV3Config:
    return DeepseekV3Config(
        vocab_size=260,
        dim=64,
        n_layers=3,
        n_dense_layers=1,
        rope=RopeConfig(max_seq_len=64, layout="interleaved"),
        attention=LatentAttentionConfig(
            n_heads=4, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
        ),
        feed_forward=FeedForwardConfig(hidden_dim=128),
        moe=MoeConfig(
            n_experts=4,
            hidden_dim=32,
            n_shared_experts=1,
            router=RouterConfig(top_k=2, score="sigmoid", expert_bias=True, bias_update_rate=0.01),
        ),
    )


MODELS = {
    "llama3": tiny_llama3,
    "deepseek_v3": tiny_deepseek_v3,
    "gpt_oss": gpt_oss_debugmodel,
    "llama4": llama4_debugmodel,
    "gemma2": gemma2_debugmodel,
    "gemma3": gemma3_debugmodel,
}


def tiny_run(folder: Path, changes: Mapping[str, Any] | None = None, *, model: str = "llama3") -> TrainerConfig:
    """A few quiet steps of a tiny model in `folder`; `changes` are fields by dotted name."""
    config = make_debug_run("tiny", MODELS[model]())
    quiet = {"metrics.progress": "off", "debug.log_level": "warning", "debug.device": "cpu", "validator.interval": 0}
    small = {"compile.mode": "eager", "training.steps": 3, "training.seq_len": 32, "training.local_batch_size": 2}
    for path, value in {
        **quiet,
        **small,
        "lr_scheduler.warmup_steps": min(2, (changes or {}).get("training.steps", 3)),
        "job.dump_folder": str(folder),
        **choose_data(changes or {}),
        **(changes or {}),
    }.items():
        change(config, path, value)
    check_config(config)
    return config


def choose_data(changes: Mapping[str, Any]) -> dict[str, str]:
    """A small corpus unless data is chosen: to read and tokenize the built-in one takes longer than a tiny run."""
    if any(path.startswith("dataloader.") for path in changes):
        return {}
    return {"dataloader.dataset": str(write_corpus(SHARED_FOLDER))}


def change(config: Any, path: str, value: Any) -> None:
    *sections, field = path.split(".")
    for section in sections:
        config = getattr(config, section)
    assert hasattr(config, field), f"there is no {path}"
    setattr(config, field, value)


@contextmanager
def open_trainer(config: TrainerConfig) -> Iterator[Trainer]:
    """The trainer that `monograph.run.train` would run, for tests that look inside or change a part of it."""
    mesh, device = plan_run_mesh(config, 1), torch.device("cpu")
    with joined_groups(mesh, device) as groups, reserved_folder(config, groups) as folder:
        yield build_trainer(config, groups, Startup(), folder)


def read_records(folder: Path) -> list[dict[str, Any]]:
    return records.read_records(folder / "metrics.jsonl")


def read_exact(folder: Path) -> list[dict[str, Any]]:
    """Everything in metrics.jsonl that must be equal in two runs that did the same."""
    return [{name: record[name] for name in EXACT if name in record} for record in read_records(folder)]


def read_step(folder: Path, step: int) -> dict[str, Tensor]:
    """Every tensor of a checkpoint: model/..., optimizer/exp_avg/..., rng/..."""
    files = sorted((folder / "checkpoints" / f"step-{step:08d}").glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def read_values(folder: Path, step: int) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / f"step-{step:08d}" / "manifest.json").read_text())["values"]


def find_steps(folder: Path) -> list[int]:
    """The steps of the committed checkpoints."""
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*"))


def bits(tensors: Mapping[str, Tensor]) -> dict[str, bytes]:
    """Tensors as bytes, so that equal means equal in every bit."""
    return {name: value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, value in tensors.items()}


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that are missing in one of the two, or not equal bit for bit."""
    left, right = bits(one), bits(other)
    return sorted(name for name in {*left, *right} if left.get(name) != right.get(name))


@dataclass(kw_only=True, slots=True)
class WatchedConfig(Llama3Config):
    """A llama whose blocks tell what they saw: how a test looks inside a step without knowing how it is run."""

    owner: ClassVar[str] = "tests.kit.runs:Watched"


class Watched(Llama3):
    Config = WatchedConfig
    seen: ClassVar[list[dict[str, Any]]] = []

    def build_block(self, stream: Any, layer: int) -> Any:
        block = super().build_block(stream, layer)
        block.register_forward_pre_hook(self.look)
        return block

    @classmethod
    def look(cls, block: Any, inputs: tuple[Any, ...]) -> None:
        weights = {weight.dtype for weight in block.parameters()}
        deterministic = torch.are_deterministic_algorithms_enabled()
        cls.seen.append({"weights": weights, "stream": inputs[0].dtype, "deterministic": deterministic})


def watched_run(folder: Path, changes: Mapping[str, Any] | None = None) -> TrainerConfig:
    config = tiny_run(folder, changes)
    plain = tiny_llama3()
    config.model = WatchedConfig(**{name: getattr(plain, name) for name in (field.name for field in fields(plain))})
    Watched.seen.clear()
    return config


def write_texts(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def tiny_dense() -> TrainerConfig:
    """The tiny model without experts, the same way: half of the time to capture."""
    return tiny_run(Path("outputs"))


def tiny() -> TrainerConfig:
    """The tiny model with experts as a recipe for the command line: `tests.kit.runs:tiny`."""
    return tiny_run(Path("outputs"), model="deepseek_v3")

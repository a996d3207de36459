"""Runs small enough for eight ranks on two cores: the debug recipes, narrower, with every feature they have.

llama3       grouped-query attention, own output matrix, a vocabulary that no degree divides
qwen3        tied embeddings, normalised queries and keys
qwen3_moe    the same with experts in every block, load balancing over the global batch, router z-loss
deepseek_v3  latent attention with a query latent, a dense first block, shared experts, group-limited routing, biases,
             load balancing per sequence, also between groups
gpt_oss      windowed and full attention, sinks, biases everywhere, clamped SwiGLU, load balancing per micro-batch
mistral      windows in every layer, heads whose channels are not the width divided by their number
gemma2       windowed and full attention, capped scores and logits, norms after layers, a scaled embedding, tied
gemma3       the same without caps of scores, with norms of queries and keys, and RoPE of its own in windowed layers
llama4       chunks with RoPE and whole texts without, every second layer with input-scaled experts and a shared one

Auxiliary losses weigh a hundred times what recipes use, so that a mistake in them shows.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.models.config import LossConfig
from monograph.parallel.config import ParallelismConfig
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

RECIPES = {
    "llama3": "llama3_debugmodel",
    "qwen3": "qwen3_debugmodel",
    "qwen3_moe": "qwen3_debugmodel_moe",
    "deepseek_v3": "deepseek_v3_debugmodel",
    "gpt_oss": "gpt_oss_debugmodel",
    "llama4": "llama4_debugmodel",
    "mistral": "mistral_debugmodel",
    "gemma2": "gemma2_debugmodel",
    "gemma3": "gemma3_debugmodel",
}
MODELS = ("llama3", "qwen3", "qwen3_moe", "deepseek_v3")
"""What tests of everything go through; families since then have tests of their own."""
SHARED_FOLDER = Path(tempfile.gettempdir()) / f"monograph-tests-{os.getuid()}"
"""Where the corpus lies for runs that have no folder to write it into."""
WITH_EXPERTS = ("qwen3_moe", "deepseek_v3")

_EVERYWHERE = {
    "model.dim": 64,
    "model.n_layers": 2,
    "model.init_std": 0.1,
    "model.vocab_size": 264,
    "model.feed_forward.hidden_dim": 96,
    "model.loss": LossConfig(chunk_tokens=24),
    "model.rope.max_seq_len": 64,
    "compile.mode": "eager",
    "training.seq_len": 32,
    "training.local_batch_size": 1,
    "training.steps": 4,
    "lr_scheduler.warmup_steps": 2,
    "metrics.progress": "off",
    "validator.interval": 0,
    "debug.log_level": "warning",
    "debug.device": "cpu",
}
_GROUPED_QUERIES = {"model.attention.n_heads": 4, "model.attention.n_kv_heads": 2, "model.attention.head_dim": 16}
_OF_MODEL: dict[str, dict[str, Any]] = {
    "llama3": {**_GROUPED_QUERIES, "model.vocab_size": 261},
    "qwen3": _GROUPED_QUERIES,
    "qwen3_moe": {
        **_GROUPED_QUERIES,
        "model.moe.hidden_dim": 32,
        "model.moe.balance.coefficient": 0.1,
        "model.moe.balance.z_coefficient": 0.01,
    },
    "deepseek_v3": {
        "model.n_layers": 3,
        "model.moe.hidden_dim": 16,
        "model.moe.router.bias_update_rate": 0.02,
        "model.moe.balance.coefficient": 0.1,
        "model.moe.balance.group_coefficient": 0.05,
        "model.moe.balance.group_traffic_coefficient": 0.05,
        "model.attention.q_lora_rank": 24,
        "model.attention.kv_lora_rank": 16,
        "model.attention.qk_nope_head_dim": 16,
        "model.attention.qk_rope_head_dim": 8,
        "model.attention.v_head_dim": 16,
        "model.rope.original_max_seq_len": 32,
    },
    "gpt_oss": {
        **_GROUPED_QUERIES,
        "model.window": 5,
        "model.moe.hidden_dim": 32,
        "model.moe.experts.limit": 0.5,
        "model.moe.balance.coefficient": 0.1,
        "model.rope.original_max_seq_len": 32,
    },
    "llama4": {
        **_GROUPED_QUERIES,
        "model.chunk": 9,
        "model.no_rope_interval": 2,
        "model.attention.floor_scale": 5,
        "model.moe.hidden_dim": 32,
        "model.moe.balance.coefficient": 0.1,
        "model.rope.original_max_seq_len": 32,
    },
}
_WINDOWS = {**_GROUPED_QUERIES, "model.attention.head_dim": 12, "model.window": 5}
_OF_MODEL |= {
    "mistral": _WINDOWS,
    "gemma3": {**_WINDOWS, "model.layer_kinds": ("window", "full"), "model.logit_cap": 3.0},
    "gemma2": {
        **_WINDOWS,
        "model.attention.score_dim": 20.0,
        "model.attention.score_cap": 2.0,
        "model.logit_cap": 3.0,
    },
}
_SHORT = {
    "replicate": "data_parallel_replicate_degree",
    "shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "method": "context_parallel_method",
    "gather": "context_parallel_gather",
    "tp": "tensor_parallel_degree",
    "ep": "expert_parallel_degree",
    "etp": "expert_tensor_parallel_degree",
}


def tiny(model: str, folder: Path, changes: dict[str, Any] | None = None, **degrees: Any) -> TrainerConfig:
    """A tiny run in `folder`; `changes` are fields by dotted name, `degrees` are replicate, shard, tp, ep, etp, ..."""
    config = load_recipe(RECIPES[model])
    small = {**_EVERYWHERE, **_OF_MODEL[model], "job.dump_folder": str(folder / "run")}
    small["dataloader.dataset"] = str(write_corpus(folder))
    small["parallelism"] = ParallelismConfig(
        timeout_seconds=60, **{_SHORT.get(name, name): value for name, value in degrees.items()}
    )
    if not hasattr(config.model, "feed_forward"):
        del small["model.feed_forward.hidden_dim"]
    if (changes or {}).get("training.steps", 4) < 2:
        small["lr_scheduler.warmup_steps"] = 0
    for path, value in {**small, **(changes or {})}.items():
        config = replace_leaf(config, path, value)
    check_config(config)
    return config


def write_corpus(folder: Path) -> Path:
    """Documents of random letters and of very different lengths, the same in every test."""
    path = folder / "corpus.jsonl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        lengths = random.integers(3, 200, size=120)
        texts = ["".join(map(chr, random.integers(32, 127, size=length))) for length in lengths]
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        whole.rename(path)  # other processes may be looking for it
    return path

"""What recipes have in common: a run small enough for a laptop, and the shape of a published pre-training run."""

from monograph.models.config import DecoderConfig
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.config import (
    JobConfig,
    MetricsConfig,
    TrainerConfig,
    TrainingConfig,
    ValidatorConfig,
)
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from monograph.train.optimizer_config import AdamWConfig


def make_debug_run(name: str, model: ModelConfig) -> TrainerConfig:
    """100 short steps in plain fp32 on the built-in corpus: the loss falls visibly within a minute on a CPU."""
    return TrainerConfig(
        model=model,
        job=JobConfig(dump_folder=f"outputs/{name}"),
        training=TrainingConfig(steps=100, seq_len=256, local_batch_size=4, dtype="float32", compute_dtype="float32"),
        optimizer=AdamWConfig(lr=1e-3),
        metrics=MetricsConfig(log_interval=10),
        validator=ValidatorConfig(interval=50, samples=16),
        checkpoint=CheckpointConfig(interval=0, save_last=True),
    )


def make_published_run(
    name: str,
    model: DecoderConfig,
    *,
    seq_len: int,
    global_batch_size: int,
    lr: float,
    warmup_steps: int = 2000,
    min_factor: float = 0.1,
) -> TrainerConfig:
    """Pre-training as the model's authors describe it: fp32 master weights, bf16 compute, AdamW, cosine decay; packed
    documents do not see each other.

    The number of steps is a start, not the authors' token budget; the corpus is the built-in one until one is named.
    """
    return TrainerConfig(
        model=model.replace(mask="document"),
        job=JobConfig(dump_folder=f"outputs/{name}"),
        training=TrainingConfig(steps=100_000, seq_len=seq_len, global_batch_size=global_batch_size),
        optimizer=AdamWConfig(lr=lr, beta1=0.9, beta2=0.95, weight_decay=0.1),
        lr_scheduler=WarmupDecayConfig(warmup_steps=warmup_steps, decay="cosine", min_factor=min_factor),
        validator=ValidatorConfig(interval=1000, samples=512),
        checkpoint=CheckpointConfig(interval=1000, keep_last=3, async_save=True),
    )

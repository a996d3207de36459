"""The two models speed is measured on: 4 sequences of 4096 tokens a step, bf16 over fp32 weights."""

from monograph.models.config import DecoderConfig
from monograph.models.deepseek_v3 import sizes as deepseek_v3
from monograph.models.llama3 import sizes as llama3
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.config import JobConfig, TrainerConfig, TrainingConfig, ValidatorConfig


def llama3_bench_1b() -> TrainerConfig:
    """Llama 3.2 1B (1.24B parameters, tied), to measure dense speed; bf16 copies of the weights fit, and are cached."""
    config = _make_bench_run("llama3_bench_1b", llama3.llama3_1b())
    return config.replace(parallelism=config.parallelism.replace(reshard_after_forward=False))


def deepseek_v3_bench_moe() -> TrainerConfig:
    """Six layers of DeepSeek-V2-Lite (3.42B parameters), to measure the speed of experts."""
    return _make_bench_run("deepseek_v3_bench_moe", deepseek_v3.deepseek_v3_16b().replace(n_layers=6))


def _make_bench_run(name: str, model: DecoderConfig) -> TrainerConfig:
    """One slice of the loss: several would each add a gradient as large as the output's weight."""
    return TrainerConfig(
        model=model.replace(loss=model.loss.replace(chunk_tokens=16384)),
        job=JobConfig(dump_folder=f"outputs/{name}"),
        training=TrainingConfig(steps=100, seq_len=4096, local_batch_size=4),
        validator=ValidatorConfig(interval=0),
        checkpoint=CheckpointConfig(enabled=False),
    )

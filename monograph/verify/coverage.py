"""What a run does and `verify` did not compare, said with every verdict."""

from collections.abc import Iterator

from monograph.train.config import TrainerConfig
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from monograph.train.optimizer_config import AdamWConfig
from monograph.verify.watch import can_record


def find_uncovered(config: TrainerConfig, device: str, *, copies_through_host: bool = False) -> tuple[str, ...]:
    """One line for each part of a run with this config, with the flag that covers it where there is one.

    Collectives that copy through the host are in no CUDA graph, of the run neither.
    """
    return tuple(_find_uncovered(config, device, records=device == "cuda" and not copies_through_host))


def _find_uncovered(config: TrainerConfig, device: str, *, records: bool) -> Iterator[str]:
    training, parallelism, graph = config.training, config.parallelism, config.compile.mode == "graph"
    narrow = {
        "training.dtype": training.dtype,
        "training.compute_dtype": training.compute_dtype,
        "parallelism.reduce_dtype": parallelism.reduce_dtype,
    }
    if fields := [name for name, value in narrow.items() if value != "float32"]:
        kernels = " and the kernels that take it alone (attention, grouped matmuls)" if device == "cuda" else ""
        yield f"{', '.join(fields)} bfloat16{kernels}: both sides compute in fp32, so that no difference is rounding"
    planned = config.plan_optimizer()
    if planned.for_fp32() != planned:
        yield f"{planned.describe()}: its state was compared in fp32"
    if type(planned) is not AdamWConfig:
        yield f"the rule of {planned.describe()}: it was compared with itself on whole parameters"
    if type(config.lr_scheduler) is not WarmupDecayConfig:
        yield f"the rates of lr_scheduler {type(config.lr_scheduler).__qualname__}: updates were made at the peak"
    if not config.needs_evaluation():
        yield "evaluation: this run has none (validator.interval is 0)"
    if config.checkpoint.load and not config.checkpoint.load_model_only:
        yield f"checkpoint.load {config.checkpoint.load}: its weights were loaded, the optimizer's state begins anew"
    if config.fault_tolerance.replicas:
        yield "sums over replicas of fault_tolerance"
    if not can_record(config):
        yield "what modules put out: loss, gradients and updates of the whole step were"
    elif graph and records and config.compile.cuda_graph == "auto":
        yield "the recorded CUDA graph: the step ran op by op (--compile.cuda_graph require verifies the recording)"

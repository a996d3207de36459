"""What a run promises about its numerics: passes, optimizer, attention and chunking together."""

from collections.abc import Iterable, Iterator

from monograph.passes.numerics import NumericsPromise, find_low_precision_passes, find_rounding_passes
from monograph.train.config import TrainerConfig


def promise_numerics(config: TrainerConfig, *, ran: Iterable[str], device: str) -> NumericsPromise:
    """The promise of a run on this kind of device whose captured step went through the passes in `ran`."""
    names = list(ran)
    narrow = find_low_precision_passes(names, config.passes.order)
    causes = [each for each in _find_causes(config, names, device) if each not in narrow]
    return NumericsPromise(tuple(causes), tuple(narrow))


def _find_causes(config: TrainerConfig, ran: list[str], device: str) -> Iterator[str]:
    yield from find_rounding_passes(ran, config.passes.order)
    if config.compile.expert_overlap.is_on and "chunk_experts" not in ran:
        yield "compile.expert_overlap"
    if config.plan_fsdp() == "fsdp2":
        yield "FSDP2"
    if config.compile.mode == "layer" and config.compile.backend == "inductor":
        yield "compile.backend inductor"
    if config.plan_optimizer().is_single_pass:
        yield config.plan_optimizer().describe()
    if device == "cuda" and not config.debug.deterministic and not _has_deterministic_attention(config):
        yield "attention, whose backward adds in any order"


def _has_deterministic_attention(config: TrainerConfig) -> bool:
    """Whether the backward of attention has no atomics: ours, which takes all with packed documents, and the dense."""
    model = config.plan_model()
    kernel = getattr(getattr(model, "attention", None), "kernel", "")
    has_documents = getattr(model, "mask", "") == "document"
    return kernel in ("auto", "triton", "reference") or (kernel == "fastest" and has_documents)

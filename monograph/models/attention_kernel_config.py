"""Who computes attention, and with which functions. Loads without torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.models.model_config import ModelConfig

AttentionKernel = Literal["auto", "cudnn", "flash", "flex", "reference", "triton", "fastest"]


@dataclass(kw_only=True, slots=True)
class AttentionKernelConfig(Configurable.Config):
    """What all attention modules can choose."""

    is_base: ClassVar[bool] = True
    kernel: AttentionKernel = "auto"
    """Which kernel computes attention on a GPU: fastest takes cuDNN's where a sequence is one text, and triton (ours)
    for packed documents and windows; auto is fastest, but with compile.numerics exact in eager and graph mode gradients
    are always those of triton, which adds in one order; flex compiles FlexAttention, on a CPU it is its reference;
    reference computes all scores."""
    mask_mod: Callable[..., Any] | None = None
    """With kernel flex: the function (package.module:name) that says which queries see which keys in place of what the
    family's layers see; keys of other packed documents are never seen."""
    score_mod: Callable[..., Any] | None = None
    """With kernel flex: the function (package.module:name) that changes scores before the softmax."""

    @property
    def is_flex(self) -> bool:
        """Whether FlexAttention computes it."""
        return self.kernel == "flex"

    def find_score_scale(self, dim: int) -> float:
        """The factor on products of queries and keys in a model of width `dim`, before what RoPE adds to it."""
        head_dim: int = self.find_head_dim(dim)  # type: ignore[attr-defined]
        return head_dim**-0.5

    def find_score_cap(self) -> float:
        """The value c of c * tanh(scores / c), to which scores are limited before the softmax; 0 for no limit."""
        return 0.0

    def find_query_heads(self) -> int:
        """Query heads of the whole model."""
        heads: int = self.n_heads  # type: ignore[attr-defined]
        return heads

    def check_kernel(self) -> None:
        """Refuse functions that no kernel but FlexAttention would call."""
        for name in ("mask_mod", "score_mod"):
            if getattr(self, name) is not None and not self.is_flex:
                raise ConfigError(
                    f"{name} is given and kernel is {self.kernel}",
                    why="only FlexAttention calls functions",
                    do="--model.attention.kernel flex",
                )


def plan_kernel(model: ModelConfig, *, may_vary: bool) -> ModelConfig:
    """A model's settings with its attention kernel decided, where they leave it to whether gradients may vary."""
    attention = getattr(model, "attention", None)
    if may_vary and isinstance(attention, AttentionKernelConfig) and attention.kernel == "auto":
        return model.replace(attention=attention.replace(kernel="fastest"))
    return model


def find_served(model: ModelConfig, *, device: str, dtype: str) -> ModelConfig:
    """A model's settings for use where its kernel does not run: kernels of GPUs serve narrow types there alone."""
    attention = getattr(model, "attention", None)
    if not isinstance(attention, AttentionKernelConfig) or attention.kernel not in ("cudnn", "flash", "triton"):
        return model
    if device == "cuda" and dtype in ("bfloat16", "float16"):
        return model
    return model.replace(attention=attention.replace(kernel="auto"))


def uses_flex(model: Any) -> bool:
    """Whether a model with these settings computes attention with FlexAttention."""
    attention = getattr(model, "attention", None)
    return isinstance(attention, AttentionKernelConfig) and attention.is_flex

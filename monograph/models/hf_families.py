"""The families that Hugging Face checkpoints can be turned into, by their `model_type` and by our Config."""

from monograph.errors import ConfigError, did_you_mean
from monograph.models.config import DecoderConfig
from monograph.models.deepseek_v3 import hf as deepseek_v3
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.hf_map import HfFamily
from monograph.models.llama3 import hf as llama3
from monograph.models.llama3.config import Llama3Config
from monograph.models.qwen3 import hf as qwen3
from monograph.models.qwen3.config import Qwen3Config

BY_MODEL_TYPE: dict[str, HfFamily] = {
    "llama": llama3,
    "qwen3": qwen3,
    "qwen3_moe": qwen3,
    "deepseek_v2": deepseek_v3,
    "deepseek_v3": deepseek_v3,
}
"""`model_type` of a config.json -> the family's map."""
BY_CONFIG: dict[type[DecoderConfig], HfFamily] = {
    Llama3Config: llama3,
    Qwen3Config: qwen3,
    DeepseekV3Config: deepseek_v3,
}
"""Config class -> the family's map."""


def find_family(model_type: str) -> HfFamily:
    """The map of a `model_type` in a config.json."""
    if model_type not in BY_MODEL_TYPE:
        raise ConfigError(
            f"unsupported model_type '{model_type}'",
            why=f"supported: {', '.join(BY_MODEL_TYPE)}",
            do=did_you_mean(model_type, BY_MODEL_TYPE),
        )
    return BY_MODEL_TYPE[model_type]


def find_family_of(config: DecoderConfig) -> HfFamily:
    """The map of one of our configs (or of a user's own config derived from it)."""
    for kind, family in BY_CONFIG.items():
        if isinstance(config, kind):
            return family
    raise ConfigError(
        f"{type(config).__qualname__} has no Hugging Face map",
        why=f"supported: {', '.join(kind.__qualname__ for kind in BY_CONFIG)} and classes derived from them",
    )

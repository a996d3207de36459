"""The text part of Gemma 3 in Hugging Face's terms (Gemma3ForCausalLM)."""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import RopeConfig
from monograph.models.gemma2.hf import NAMES as GEMMA2_NAMES
from monograph.models.gemma2.hf import entries as gemma2_entries
from monograph.models.gemma2.hf import read_attention, read_gemma, read_layer_kinds, write_gemma
from monograph.models.gemma3.config import Gemma3AttentionConfig, Gemma3Config
from monograph.models.hf_config import check_read
from monograph.models.hf_map import Entry, NameRule, expand, is_never_needed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope

MODEL_TYPES: tuple[str, ...] = ("gemma3_text",)
"""`model_type` of the config.json of such a model."""
NAMES = {**GEMMA2_NAMES, "window_theta": "rope_local_base_freq"}
"""Fields of our config -> keys of config.json, besides those that all families share."""
UNSTATED: dict[str, Any] = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
"""Values that Gemma3TextConfig takes for missing keys."""
HEAD_NORMS = tuple(
    NameRule(f"layers.{{layer}}.attention.{name}_norm.weight", f"model.layers.{{layer}}.self_attn.{name}_norm.weight")
    for name in "qk"
)
WINDOWED, FULL = "sliding_attention", "full_attention"


def entries(config: Gemma3Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    return [*gemma2_entries(config), *expand(HEAD_NORMS, layers=range(config.n_layers))]


def is_ignored(config: Gemma3Config, name: str) -> bool:
    """Whether a tensor of their checkpoint is known, and known not to be needed."""
    return is_never_needed(config, name)


def from_hf_config(given: Mapping[str, Any]) -> Gemma3Config:
    """Our config of the model that a config.json describes."""
    hf = HfReader({**UNSTATED, **given})
    hf.require("model_type", "gemma3_text")
    hf.require("attn_logit_softcapping", None)  # their attention of this family ignores it
    shared = read_gemma(hf)
    rope, window_theta = read_ropes(hf)
    config = Gemma3Config(
        **shared, rope=rope, window_theta=window_theta, attention=Gemma3AttentionConfig(**read_attention(hf))
    )
    config.layer_kinds = read_layer_kinds(hf, config)
    if hf.get("layer_types") is None:
        hf.require("sliding_window_pattern", config.full_interval)
    hf.ignore("sliding_window_pattern", "_sliding_window_pattern")  # read only where layer_types is missing
    hf.finish()
    check_read(config, NAMES)
    return config


def read_ropes(hf: HfReader) -> tuple[RopeConfig, float]:
    """Rotary positions of full layers, and the base of those of windowed ones.

    Older files have keys for each; newer ones an object for either kind of layer in `rope_parameters`.
    """
    both = hf.section("rope_parameters")
    if both is None:
        older = hf.section("rope_scaling")
        if older is not None and "rope_type" not in older.values:
            raise hf.refuse("rope_scaling", "Gemma3TextConfig takes an object without 'rope_type' for no scaling")
        return read_rope(hf), hf.number("rope_local_base_freq", default=10000.0)
    if hf.has("rope_scaling"):
        raise hf.refuse("rope_scaling", "'rope_parameters' says something else")
    hf.ignore("rope_theta", "rope_local_base_freq")
    full, windowed = both.section(FULL), both.section(WINDOWED)
    both.finish()
    if full is None or windowed is None:
        raise hf.refuse("rope_parameters", f"expected an object with {FULL} and {WINDOWED}")
    windowed.require("rope_type", "default")
    theta = windowed.number("rope_theta")
    windowed.finish()
    positions = hf.values.get("max_position_embeddings")
    hf.ignore("max_position_embeddings")
    return read_rope(HfReader({"max_position_embeddings": positions, "rope_parameters": full.values})), theta


def to_hf_config(config: Gemma3Config) -> dict[str, Any]:
    """The config.json of a model of ours."""
    if not config.attention.qk_norm:
        raise ConfigError(
            "attention.qk_norm is off", why="their model always has these norms", do="attention.qk_norm true"
        )
    if config.attention.score_cap:
        raise ConfigError(
            f"attention.score_cap is {config.attention.score_cap}",
            why="attention of Gemma3ForCausalLM caps no scores",
            do="attention.score_cap 0",
        )
    written = write_gemma(config, model_type="gemma3_text", architecture="Gemma3ForCausalLM")
    return written | write_rope(config.rope) | {"rope_local_base_freq": float(config.window_theta)}

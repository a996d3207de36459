"""Rotary positions in a Hugging Face config.json.

Written in the form that transformers 4 introduced and 5 still reads (`rope_theta`, `rope_scaling`); read in both forms.
"""

from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import RopeConfig
from monograph.models.hf_reader import HfReader

ROPE_NAMES = {
    "max_seq_len": "max_position_embeddings",
    "theta": "rope_theta",
    "original_max_seq_len": "original_max_position_embeddings",
    **{name: name for name in ("factor", "low_freq_factor", "high_freq_factor")},
    **{name: name for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")},
}
"""Fields of RopeConfig -> keys of config.json."""


def read_rope(hf: HfReader, *, layout: Any = "half", scales_scores: bool = False) -> RopeConfig:
    """Rotary positions; `scales_scores` says whether their attention applies yarn's `mscale_all_dim`."""
    given = find_section(hf)
    for keys in (hf, given):
        keys.require("partial_rotary_factor", 1.0, None)
    holder = given if "rope_theta" in given.values else hf
    if "rope_theta" not in holder.values:
        raise ConfigError(
            "config.json has no 'rope_theta'", why="'rope_parameters' and 'rope_scaling' do not have it either"
        )
    rope = RopeConfig(
        max_seq_len=hf.tokens("max_position_embeddings"),
        theta=holder.number("rope_theta"),
        layout=layout,
    )
    hf.ignore("rope_theta")  # the section's own value comes first
    kind_key = "type" if "type" in given.values and "rope_type" not in given.values else "rope_type"
    given.require(kind_key, "default", "linear", "llama3", "yarn")
    kind = given.values.get(kind_key, "default")
    given.ignore("type")
    given.because = f"'{given.name(kind_key)}' {kind!r}"
    if kind != "default":
        rope.scaling = kind
        rope.factor = given.number("factor")
    if kind in ("llama3", "yarn"):
        rope.original_max_seq_len = given.tokens("original_max_position_embeddings")
    if kind == "llama3":
        rope.low_freq_factor = given.number("low_freq_factor")
        rope.high_freq_factor = given.number("high_freq_factor")
    if kind == "yarn":
        read_yarn(given, rope, scales_scores=scales_scores)
    given.finish()
    return rope


def find_section(hf: HfReader) -> HfReader:
    """The object that describes rotary positions, under either of its names; empty when there is none."""
    old, new = hf.section("rope_scaling"), hf.section("rope_parameters")
    if old and new and old.values and new.values and old.values != new.values:
        raise hf.refuse("rope_scaling", "'rope_parameters' says something else")
    chosen = old if old and old.values else new
    return chosen or HfReader({}, path="rope_parameters")


def read_yarn(given: HfReader, rope: RopeConfig, *, scales_scores: bool) -> None:
    """Yarn's options; as in transformers, 0 and null stand for the default."""
    given.require("attention_factor", None)
    rope.truncate = given.boolean("truncate", default=True)
    if given.get("beta_fast"):
        rope.beta_fast = given.number("beta_fast")
    if given.get("beta_slow"):
        rope.beta_slow = given.number("beta_slow")
    mscale, all_dim = given.get("mscale"), given.get("mscale_all_dim")
    if all_dim and not (mscale and scales_scores):
        raise given.refuse("mscale_all_dim", f"'mscale' is {mscale!r}, and this family uses both or neither")
    if mscale and all_dim:
        rope.mscale, rope.mscale_all_dim = given.number("mscale"), given.number("mscale_all_dim")


def write_rope(rope: RopeConfig, *, layout: str | None = "half", scales_scores: bool = False) -> dict[str, Any]:
    """The keys of a config.json that describe rotary positions; `layout` is the one their model expects, if fixed."""
    if layout is not None and rope.layout != layout:
        raise ConfigError(f"rope.layout is {rope.layout}", why=f"their model uses the RoPE layout '{layout}'")
    keys: dict[str, Any] = {"max_position_embeddings": rope.max_seq_len, "rope_theta": rope.theta, "rope_scaling": None}
    if rope.scaling == "none":
        return keys
    scaling: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    if rope.scaling == "linear":
        return keys | {"rope_scaling": scaling}
    scaling["original_max_position_embeddings"] = rope.original_max_seq_len
    if rope.scaling == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    else:
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow} | write_yarn_scales(rope, scales_scores)
        scaling |= {} if rope.truncate else {"truncate": False}
    return keys | {"rope_scaling": scaling}


def write_yarn_scales(rope: RopeConfig, scales_scores: bool) -> dict[str, Any]:
    """Yarn's strengths, where their model reads them as we do: both set, or neither."""
    if rope.mscale_all_dim == 0 and rope.mscale == 1:
        return {}
    if scales_scores and rope.mscale_all_dim and rope.mscale:
        return {"mscale": rope.mscale, "mscale_all_dim": rope.mscale_all_dim}
    raise ConfigError(
        f"rope.mscale is {rope.mscale} and rope.mscale_all_dim is {rope.mscale_all_dim}",
        why="their model would compute something else with these",
        do="rope.mscale 1 and rope.mscale_all_dim 0" + (", or both positive" if scales_scores else ""),
    )

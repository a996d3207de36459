"""Reading and writing the parts of a Hugging Face config.json that all families share.

Written in the form that transformers 4 introduced and 5 still reads (`rope_theta`, `rope_scaling`); read in both forms.
A setting we cannot honour is refused: weights that are loaded but computed with differently would be worthless.
"""

from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig, RopeConfig
from monograph.models.hf_map import SCALE_BLOCK
from monograph.models.load_balance_config import BalanceScope, LoadBalanceConfig


def need(hf: Mapping[str, Any], key: str) -> Any:
    """A value the model cannot be described without."""
    if hf.get(key) is None:
        raise ConfigError(f"config.json has no '{key}'", why="the model cannot be built without it")
    return hf[key]


def refuse_unless(hf: Mapping[str, Any], key: str, *served: Any) -> None:
    """Refuse a config.json that asks for something our models do not do; a missing key asks for nothing."""
    if key in hf and hf[key] not in served:
        choices = " or ".join(repr(value) for value in served)
        raise ConfigError(f"config.json says '{key}' is {hf[key]!r}", why=f"this family is built for {choices} only")


def read_shared(hf: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a DecoderConfig, except its rotary positions."""
    refuse_unless(hf, "hidden_act", "silu")
    refuse_unless(hf, "attention_bias", False)
    refuse_unless(hf, "mlp_bias", False)
    check_quantization(hf.get("quantization_config") or {})
    return {
        "vocab_size": need(hf, "vocab_size"),
        "dim": need(hf, "hidden_size"),
        "n_layers": need(hf, "num_hidden_layers"),
        "norm_eps": need(hf, "rms_norm_eps"),
        "tied_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "init_std": hf.get("initializer_range", 0.02),
    }


def check_quantization(quantization: Mapping[str, Any]) -> None:
    """Refuse weights stored in a way `hf_map.read_theirs` cannot turn back into numbers."""
    if quantization and quantization.get("weight_block_size") != [SCALE_BLOCK, SCALE_BLOCK]:
        raise ConfigError(
            f"config.json says the weights are quantized with '{quantization.get('quant_method')}'",
            why=f"only fp8 in blocks of {SCALE_BLOCK} x {SCALE_BLOCK} with one scale each can be read",
            do="use a checkpoint in bfloat16",
        )


def write_shared(config: DecoderConfig, *, model_type: str, architecture: str) -> dict[str, Any]:
    """The keys of a config.json that say what `read_shared` reads, and which model class to use."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "initializer_range": config.init_std,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }


def read_rope(hf: Mapping[str, Any], *, layout: Any = "half", scales_scores: bool = False) -> RopeConfig:
    """Rotary positions; `scales_scores` says whether their attention applies yarn's `mscale_all_dim`."""
    given = dict(hf.get("rope_parameters") or hf.get("rope_scaling") or {})
    theta = given.get("rope_theta") or need(hf, "rope_theta")
    kind: Any = given.get("rope_type") or given.get("type") or "default"
    for keys in (hf, given):
        refuse_unless(keys, "partial_rotary_factor", 1.0, None)
    rope = RopeConfig(max_seq_len=need(hf, "max_position_embeddings"), theta=float(theta), layout=layout)
    if kind == "default":
        return rope
    refuse_unless({"rope_type": kind}, "rope_type", "default", "llama3", "yarn")
    rope.scaling = kind
    rope.factor = float(need(given, "factor"))
    rope.original_max_seq_len = need(given, "original_max_position_embeddings")
    if kind == "llama3":
        rope.low_freq_factor = float(need(given, "low_freq_factor"))
        rope.high_freq_factor = float(need(given, "high_freq_factor"))
        return rope
    refuse_unless(given, "attention_factor", None)
    refuse_unless(given, "truncate", True, None)
    rope.beta_fast = float(given.get("beta_fast") or 32.0)
    rope.beta_slow = float(given.get("beta_slow") or 1.0)
    mscale, all_dim = given.get("mscale"), given.get("mscale_all_dim")
    if all_dim and not (mscale and scales_scores):
        raise ConfigError(
            f"config.json says 'mscale_all_dim' is {all_dim} and 'mscale' is {mscale}",
            why="this family's attention uses both or neither",
        )
    if mscale and all_dim:
        rope.mscale, rope.mscale_all_dim = float(mscale), float(all_dim)
    return rope


def write_rope(rope: RopeConfig, *, layout: str | None = "half", scales_scores: bool = False) -> dict[str, Any]:
    """The keys of a config.json that describe rotary positions; `layout` is the one their model expects, if fixed."""
    if layout is not None and rope.layout != layout:
        raise ConfigError(f"rope.layout is {rope.layout}", why=f"their model turns channels in the layout '{layout}'")
    keys: dict[str, Any] = {"max_position_embeddings": rope.max_seq_len, "rope_theta": rope.theta, "rope_scaling": None}
    if rope.scaling == "none":
        return keys
    scaling: dict[str, Any] = {
        "rope_type": rope.scaling,
        "factor": rope.factor,
        "original_max_position_embeddings": rope.original_max_seq_len,
    }
    if rope.scaling == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    else:
        scaling |= {"beta_fast": rope.beta_fast, "beta_slow": rope.beta_slow} | write_yarn_scales(rope, scales_scores)
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


def read_balance(
    hf: Mapping[str, Any], key: str, *, scope: BalanceScope, times_top_k: bool = False
) -> LoadBalanceConfig:
    """The load balancing that a config.json asks of whoever trains the model on; none where it says nothing.

    It does not touch what a model computes. What config.json cannot say (losses between groups, the z-loss, a scope
    over the global batch) is not exported.
    """
    coefficient = float(hf.get(key) or 0.0)
    if not coefficient:
        return LoadBalanceConfig()
    return LoadBalanceConfig(coefficient=coefficient, scope=scope, times_top_k=times_top_k)

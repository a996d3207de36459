"""Reading and writing the parts of a Hugging Face config.json that all families share.

A setting we cannot honour is refused: weights that are loaded but computed with differently would be worthless.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from monograph.config.configurable import check_config
from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig
from monograph.models.hf_quantization import check_quantization
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import ROPE_NAMES
from monograph.models.load_balance_config import BalanceScope, LoadBalanceConfig

SHARED_NAMES = {
    **ROPE_NAMES,
    "vocab_size": "vocab_size",
    "dim": "hidden_size",
    "n_layers": "num_hidden_layers",
    "norm_eps": "rms_norm_eps",
    "init_std": "initializer_range",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
}
"""Fields of our configs -> keys of config.json, for errors about values that contradict each other."""


def read_shared(hf: HfReader, *, own: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a DecoderConfig, except its rotary positions. Keys in `own` are read by the family itself."""
    hf.require("mlp_bias", False)
    hf.require("attention_dropout", 0, None)
    hf.require("is_causal", True)
    hf.require("is_encoder_decoder", False)
    hf.require("add_cross_attention", False)
    hf.require("tie_encoder_decoder", False)
    hf.require("pruned_heads", {}, None)
    hf.ignore("output_router_logits", "router_aux_loss_coef", "aux_loss_alpha", "seq_aux")  # see read_balance
    n_layers = hf.count("num_hidden_layers")
    plain: dict[str, tuple[Any, ...]] = {
        "hidden_act": ("silu",),
        "attention_bias": (False,),
        "attention_chunk_size": (None,),
        "layer_types": (["full_attention"] * n_layers, None),
    }
    for key, served in plain.items():
        if key not in own:
            hf.require(key, *served)
    if "quantization_config" not in own:
        check_quantization(hf.section("quantization_config"))
    return {
        "vocab_size": hf.tokens("vocab_size"),
        "dim": hf.size("hidden_size"),
        "n_layers": n_layers,
        "norm_eps": hf.number("rms_norm_eps"),
        "tied_embeddings": hf.boolean("tie_word_embeddings", default=False),
        "init_std": hf.number("initializer_range", default=0.02),
    }


def read_kv_heads(hf: HfReader) -> int:
    """Key and value heads; as many as query heads where nothing is said."""
    key = "num_key_value_heads"
    return hf.count(key if hf.has(key) else "num_attention_heads")


def read_head_dim(hf: HfReader) -> int:
    """Channels of a head; without the key their classes divide the width by the heads."""
    if hf.has("head_dim"):
        return hf.size("head_dim")
    dim, n_heads = hf.size("hidden_size"), hf.count("num_attention_heads")
    if dim // n_heads % 2:
        raise ConfigError(
            f"'hidden_size' is {dim} and 'num_attention_heads' is {n_heads} without 'head_dim'",
            why=f"heads would have {dim // n_heads} channels, and RoPE rotates channels in pairs",
        )
    return dim // n_heads


def read_experts(hf: HfReader, *names: str) -> int:
    """The number of routed experts, which has two names; both may be there if they agree."""
    first, *others = [name for name in names if name in hf.values] or names[:1]
    count = hf.count(first)
    for name in others:
        hf.require_derived(name, count, f"'{first}'")
    return count


def check_whole_heads(dim: int, n_heads: int) -> None:
    """Refuse a width that their config class refuses, in either direction."""
    if dim % n_heads:
        raise ConfigError(
            f"'hidden_size' is {dim} and 'num_attention_heads' is {n_heads}",
            why="transformers needs a multiple of the heads in this family, even where head_dim is given",
        )


def check_read(config: DecoderConfig, names: Mapping[str, str]) -> None:
    """Refuse values that contradict each other, by our names and theirs."""
    try:
        check_config(config)
    except ConfigError as error:
        words = re.findall(r"\w+", error.what)
        theirs = [f"'{key}'" for ours, key in {**SHARED_NAMES, **names}.items() if ours in words]
        raise ConfigError(
            f"config.json describes no model we can build: {error.what}" + f" ({', '.join(theirs)})" * bool(theirs),
            why=error.why,
        ) from None


def write_shared(config: DecoderConfig, *, model_type: str, architecture: str) -> dict[str, Any]:
    """The keys of a config.json that say what `read_shared` reads, and which model class to use."""
    attention = getattr(config, "attention", None)
    for name in ("mask_mod", "score_mod"):
        if getattr(attention, name, None) is not None:
            raise ConfigError(f"attention.{name} is given", why=f"{architecture} has no custom mask or score functions")
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.dim,
        "num_hidden_layers": config.n_layers,
        "rms_norm_eps": float(config.norm_eps),
        "tie_word_embeddings": config.tied_embeddings,
        "initializer_range": float(config.init_std),
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
    }


def read_balance(hf: HfReader, *, scope: BalanceScope, times_top_k: bool = False) -> LoadBalanceConfig:
    """The load balancing that a config.json asks of whoever trains the model on, in transformers' terms.

    transformers adds the loss with `output_router_logits` only, which published models leave off; the coefficient alone
    asks for nothing. One coefficient is for all layers together. It does not touch what a model computes, and nothing
    of it is exported: with the switch on, transformers adds it to the loss that it reports, too.
    """
    switch, key = "output_router_logits", "router_aux_loss_coef"
    if not hf.has(switch) or not hf.boolean(switch):
        return LoadBalanceConfig()
    if not hf.has(key):
        raise ConfigError(
            f"config.json says '{switch}' is true and has no '{key}'",
            why="its classes then balance the experts with a weight that depends on their version",
            do=f'write "{key}": 0.001, or "{switch}": false',
        )
    return make_balance(hf, key, scope=scope, times_top_k=times_top_k, mean_of_layers=True)


def make_balance(
    hf: HfReader, key: str, *, scope: BalanceScope, times_top_k: bool = False, mean_of_layers: bool = False
) -> LoadBalanceConfig:
    """The load balancing with the weight that a key gives; none where it gives none."""
    coefficient = hf.number(key) if hf.has(key) else 0.0
    if coefficient < 0:
        raise hf.refuse(key, "a negative weight rewards uneven load")
    if not coefficient:
        return LoadBalanceConfig()
    return LoadBalanceConfig(
        coefficient=coefficient, scope=scope, times_top_k=times_top_k, mean_of_layers=mean_of_layers
    )

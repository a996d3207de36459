"""Llama 4 in Hugging Face's terms: Llama4ForCausalLM, and the text part of Llama4ForConditionalGeneration."""

from collections.abc import Mapping
from typing import Any

from monograph.config.leaves import find_leaves
from monograph.errors import ConfigError
from monograph.models.config import FeedForwardConfig
from monograph.models.hf_config import check_read, read_experts, read_kv_heads, read_shared, write_shared
from monograph.models.hf_map import ATTENTION, NORMS, OUTPUT, TOP, Entry, NameRule, expand, is_never_needed
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope
from monograph.models.llama4.config import Llama4AttentionConfig, Llama4Config, Llama4MoeConfig, Llama4RouterConfig

MODEL_TYPES: tuple[str, ...] = ("llama4_text", "llama4")
"""`model_type` of the config.json of such a model."""
NAMES = {
    "chunk": "attention_chunk_size",
    "no_rope_interval": "no_rope_layer_interval",
    "no_rope_layers": "no_rope_layers",
    "moe_interval": "interleave_moe_layer_step",
    "moe_layers": "moe_layers",
    "n_experts": "num_local_experts",
    "top_k": "num_experts_per_tok",
    "hidden_dim": "intermediate_size",
    "floor_scale": "floor_scale",
    "attn_scale": "attn_scale",
}
"""Fields of our config -> keys of config.json, besides those that all families share."""
CHUNKED, FULL = "chunked_attention", "full_attention"
TOWERS = ("vision_model.", "multi_modal_projector.")
"""What a model with pictures has besides its text part."""


def find_prefix(given: Mapping[str, Any]) -> str:
    """What the names of the text part's tensors begin with, in a checkpoint with this config.json."""
    return "language_model." if given.get("model_type") == "llama4" else ""


def rule(ours: str, theirs: str, unflatten: tuple[int, ...] = ()) -> NameRule:
    """A rule within a block."""
    return NameRule(f"layers.{{layer}}.{ours}", f"model.layers.{{layer}}.feed_forward.{theirs}", unflatten)


def name_projections(ours: str, theirs: str) -> tuple[NameRule, ...]:
    """The three projections of a feed-forward layer."""
    names = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    return tuple(rule(f"{ours}.{each}.weight", f"{theirs}{name}.weight") for each, name in names.items())


def entries(config: Llama4Config) -> list[Entry]:
    """Every tensor of ours and its name in their checkpoint."""
    top = TOP if config.tied_embeddings else TOP + OUTPUT
    experts = (
        rule("moe.router.gate.weight", "router.weight"),
        rule("moe.experts.w13", "experts.gate_up_proj", (2, config.moe.hidden_dim)),
        rule("moe.experts.w2", "experts.down_proj"),
        *name_projections("moe.shared_experts", "shared_expert."),
    )
    found = [*expand(top), *expand(NORMS + ATTENTION, layers=range(config.n_layers))]
    for layer in range(config.n_layers):
        block = experts if config.has_experts(layer) else name_projections("feed_forward", "")
        found += expand(block, layers=range(layer, layer + 1))
    return found


def is_ignored(config: Llama4Config, name: str) -> bool:
    """Tensors not needed: those of any family, and the parts that read pictures."""
    return is_never_needed(config, name) or name.startswith(TOWERS)


def from_hf_config(given: Mapping[str, Any]) -> Llama4Config:
    """Our config of the model that a config.json describes; of one that reads pictures, its text part."""
    outer = HfReader(given)
    outer.require("model_type", *MODEL_TYPES)
    if outer.get("model_type") == "llama4_text":
        return read_text(outer)
    text = outer.section("text_config")
    if text is None:
        raise ConfigError("config.json has no 'text_config'", why="it describes the text part of a 'llama4' model")
    outer.require("tie_word_embeddings", bool(text.get("tie_word_embeddings")))
    outer.require("quantization_config", None)
    outer.ignore("output_router_logits", "vision_config", "boi_token_index", "eoi_token_index", "image_token_index")
    outer.ignore("boi_token_id", "eoi_token_id", "image_token_id")
    outer.finish()
    return read_text(HfReader(text.values))


def read_text(hf: HfReader) -> Llama4Config:
    """The text part, from its own settings."""
    hf.require("model_type", "llama4_text")
    hf.require("router_jitter_noise", 0.0, None)
    hf.require("attention_bias", False)
    hf.ignore("for_llm_compressor")  # and their classes read no router_aux_loss_coef: an import balances nothing
    shared = read_shared(hf, own=("attention_chunk_size", "layer_types"))
    n_layers = shared["n_layers"]
    no_rope_interval, no_rope_layers = read_no_rope(hf, n_layers)
    moe_interval, moe_layers = read_moe_layers(hf, n_layers)
    config = Llama4Config(
        **shared,
        rope=read_rope(hf, layout="interleaved"),
        chunk=hf.tokens("attention_chunk_size"),
        no_rope_interval=no_rope_interval,
        no_rope_layers=no_rope_layers,
        moe_interval=moe_interval,
        moe_layers=moe_layers,
        attention=read_attention(hf),
        feed_forward=FeedForwardConfig(hidden_dim=hf.size("intermediate_size_mlp")),
        moe=Llama4MoeConfig(
            n_experts=read_experts(hf, "num_local_experts", "num_experts"),
            hidden_dim=hf.size("intermediate_size"),
            n_shared_experts=1,
            router=Llama4RouterConfig(top_k=hf.count("num_experts_per_tok"), score="sigmoid", norm=False),
        ),
    )
    usual = [CHUNKED if config.has_rope(layer) else FULL for layer in range(n_layers)]
    if hf.has("layer_types") and hf.get("layer_types") != usual:
        raise hf.refuse("layer_types", "layers with RoPE are read in chunks, those without see their whole text")
    hf.finish()
    check_read(config, NAMES)
    return config


def read_attention(hf: HfReader) -> Llama4AttentionConfig:
    """The attention of every block."""
    tuning = hf.get("attn_temperature_tuning")
    if tuning not in (None, True, False, 4):
        raise hf.refuse("attn_temperature_tuning", "expected true or false")
    return Llama4AttentionConfig(
        n_heads=hf.count("num_attention_heads"),
        n_kv_heads=read_kv_heads(hf),
        head_dim=hf.size("head_dim"),
        qk_norm=hf.boolean("use_qk_norm", default=True),
        temperature_tuning=tuning is None or bool(tuning),
        floor_scale=hf.tokens("floor_scale") if hf.has("floor_scale") else 8192,
        attn_scale=hf.number("attn_scale", default=0.1),
    )


def read_no_rope(hf: HfReader, n_layers: int) -> tuple[int, tuple[int, ...]]:
    """Interval and list of the layers without RoPE; theirs has a 1 for every layer that has RoPE."""
    interval = hf.count("no_rope_layer_interval") if hf.has("no_rope_layer_interval") else 4
    given = hf.get("no_rope_layers")
    if not given:
        return interval, ()
    if not isinstance(given, list) or not all(isinstance(each, int) and each in (0, 1) for each in given):
        raise hf.refuse("no_rope_layers", "expected a list of zeros and ones")
    if len(given) != n_layers:
        raise hf.refuse("no_rope_layers", f"'num_hidden_layers' is {n_layers}")
    found = tuple(layer for layer, has_rope in enumerate(given) if not has_rope)
    if found == tuple(layer for layer in range(n_layers) if (layer + 1) % interval == 0):
        return interval, ()
    return (interval, found) if found else (n_layers + 1, ())


def read_moe_layers(hf: HfReader, n_layers: int) -> tuple[int, tuple[int, ...]]:
    """Interval and list of the layers with experts."""
    key = "interleave_moe_layer_step"
    interval, given = hf.count(key) if hf.has(key) else 1, hf.get("moe_layers")
    if given is None:
        return interval, ()
    is_list = isinstance(given, list) and all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if not is_list or not given or not all(0 <= each < n_layers for each in given):
        raise hf.refuse("moe_layers", f"expected numbers of layers, some of 0 to {n_layers - 1}")
    found = tuple(sorted(set(given)))
    return interval, () if found == tuple(range(interval - 1, n_layers, interval)) else found


def to_hf_config(config: Llama4Config) -> dict[str, Any]:
    """The config.json of a model of ours, which has no part that reads pictures."""
    attention, moe, layers = config.attention, config.moe, range(config.n_layers)
    check_moe(moe)
    rope = write_rope(config.rope, layout="interleaved")
    return (
        write_shared(config, model_type="llama4_text", architecture="Llama4ForCausalLM")
        | rope
        | {
            "num_attention_heads": attention.n_heads,
            "num_key_value_heads": attention.n_kv_heads,
            "head_dim": attention.find_head_dim(config.dim),
            "use_qk_norm": attention.qk_norm,
            "attn_temperature_tuning": attention.temperature_tuning,
            "floor_scale": attention.floor_scale,
            "attn_scale": float(attention.attn_scale),
            "attention_chunk_size": config.chunk,
            "no_rope_layer_interval": config.no_rope_interval,
            "no_rope_layers": [int(config.has_rope(layer)) for layer in layers],
            "layer_types": [CHUNKED if config.has_rope(layer) else FULL for layer in layers],
            "interleave_moe_layer_step": config.moe_interval,
            "moe_layers": [layer for layer in layers if config.has_experts(layer)],
            "intermediate_size": moe.hidden_dim,
            "intermediate_size_mlp": config.feed_forward.hidden_dim,
            "num_local_experts": moe.n_experts,
            "num_experts_per_tok": moe.router.top_k,
        }
    )


def check_moe(moe: Llama4MoeConfig) -> None:
    """Refuse experts that their class does not have."""
    router = moe.router
    if moe.n_shared_experts != 1:
        raise ConfigError(f"moe.n_shared_experts is {moe.n_shared_experts}", why="Llama4ForCausalLM has one")
    kept = {name: getattr(router, name) for name in ("top_k", "bias_update_rate", "group_score")}
    plain = Llama4RouterConfig(score="sigmoid", norm=False, **kept)
    for leaf, expected in zip(find_leaves(router), find_leaves(plain), strict=True):
        if leaf != expected:
            raise ConfigError(
                f"moe.router.{leaf.path} is {leaf.value}",
                why=f"Llama4ForCausalLM computes with {expected.value} only",
                do="export a model trained like that",
            )

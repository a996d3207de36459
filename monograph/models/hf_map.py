"""Our tensors and those of Hugging Face checkpoints, as a table that is read in both directions.

A family's `hf.py` lists rules, pairs of name patterns; `expand` writes them out for every layer and expert. What an
entry says is all there is to say: one tensor of ours is one of theirs, or theirs stacked along a new first dim. Layouts
are equal on both sides (the last dim of theirs may be two of ours), so nothing is transposed or permuted and a round
trip keeps every bit. Loads without torch, so
that a config.json is read and refused at once; `hf_tensors` moves the values.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from monograph.errors import ConfigError
from monograph.models.config import DecoderConfig
from monograph.models.model_config import ModelConfig
from monograph.plurals import counted


@dataclass(frozen=True)
class NameRule:
    """A pair of name patterns; {layer} counts blocks, and {expert} (theirs only) the experts ours stacks."""

    ours: str
    theirs: str
    unflatten: tuple[int, ...] = ()
    """As in `Entry`."""


@dataclass(frozen=True)
class Entry:
    """One tensor of ours and the tensors of theirs it is made of."""

    ours: str
    theirs: tuple[str, ...]
    stacked: bool = False
    """Whether theirs are stacked along a new first dim."""
    unflatten: tuple[int, ...] = ()
    """Dims of ours that are the last dim of theirs; none where the last dim is the same on both sides."""

    def shape_theirs(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of each of theirs, from the shape of ours."""
        shape = ours[1:] if self.stacked else ours
        return (*shape[: -len(self.unflatten)], math.prod(self.unflatten)) if self.unflatten else shape


class HfFamily(Protocol):
    """What a family's `hf` module, or a class with these members, offers.

    One whose tensors have other names in some checkpoints has `find_prefix(config.json) -> str` too: what all names of
    its tensors begin with there.
    """

    MODEL_TYPES: tuple[str, ...]
    """`model_type` of the config.json of such a model."""

    def entries(self, config: Any, /) -> list[Entry]:
        """Every parameter and persistent buffer of ours, with its names in their checkpoint."""

    def is_ignored(self, config: Any, name: str, /) -> bool:
        """Whether a tensor of their checkpoint is known, and known not to be needed."""

    def from_hf_config(self, hf: Mapping[str, Any], /) -> ModelConfig:
        """Our config of the model that a config.json describes."""

    def to_hf_config(self, config: Any, /) -> dict[str, Any]:
        """The config.json of a model of ours."""


TOP = (
    NameRule("embedding.weight", "model.embed_tokens.weight"),
    NameRule("head.norm.weight", "model.norm.weight"),
)
OUTPUT = (NameRule("head.output.weight", "lm_head.weight"),)
NORMS = (
    NameRule("layers.{layer}.attention_norm.weight", "model.layers.{layer}.input_layernorm.weight"),
    NameRule("layers.{layer}.ffn_norm.weight", "model.layers.{layer}.post_attention_layernorm.weight"),
)
ATTENTION = tuple(
    NameRule(f"layers.{{layer}}.attention.w{name}.weight", f"model.layers.{{layer}}.self_attn.{name}_proj.weight")
    for name in "qkvo"
)
FEED_FORWARD = (
    NameRule("layers.{layer}.feed_forward.w1.weight", "model.layers.{layer}.mlp.gate_proj.weight"),
    NameRule("layers.{layer}.feed_forward.w2.weight", "model.layers.{layer}.mlp.down_proj.weight"),
    NameRule("layers.{layer}.feed_forward.w3.weight", "model.layers.{layer}.mlp.up_proj.weight"),
)
EXPERTS = (
    NameRule("layers.{layer}.moe.router.gate.weight", "model.layers.{layer}.mlp.gate.weight"),
    NameRule("layers.{layer}.moe.experts.w1", "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"),
    NameRule("layers.{layer}.moe.experts.w2", "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"),
    NameRule("layers.{layer}.moe.experts.w3", "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"),
)
"""The names that all our families share."""
TIED = ("lm_head.weight", "model.embed_tokens.weight")
"""The output projection that a checkpoint may repeat where it is tied, and the embedding that it then must equal."""
MAX_TENSORS = 1 << 18
"""The most tensors of a checkpoint; far above every published model."""


def expand(rules: Iterable[NameRule], *, layers: range = range(1), n_experts: int = 0) -> Iterator[Entry]:
    """The entries that rules stand for, layer by layer, with all experts of a layer in one entry."""
    rules = tuple(rules)
    count = len(layers) * sum(n_experts if "{expert}" in rule.theirs else 1 for rule in rules)
    if count > MAX_TENSORS:
        raise ConfigError(
            f"{counted(len(layers), 'layer')} with {n_experts} experts are {count} tensors",
            why=f"no checkpoint has more than {MAX_TENSORS}",
            do="repair num_hidden_layers or the number of experts in config.json",
        )
    for layer in layers:
        for rule in rules:
            stacked = "{expert}" in rule.theirs
            experts = range(n_experts) if stacked else range(1)
            theirs = tuple(rule.theirs.format(layer=layer, expert=expert) for expert in experts)
            yield Entry(rule.ours.format(layer=layer), theirs, stacked, rule.unflatten)


def is_never_needed(config: DecoderConfig, name: str) -> bool:
    """Tensors that any family's checkpoint may hold in vain: rotary tables, and the copy of a tied embedding."""
    return name.endswith("rotary_emb.inv_freq") or (config.tied_embeddings and name == TIED[0])


def find_layer(name: str) -> int:
    """The block that a tensor of theirs belongs to; -1 when it belongs to none."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return int(found.group(1)) if found else -1

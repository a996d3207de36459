"""Models that break one promise each, for check-model to find."""

import os
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import monograph as mg
from examples.own_model import hf
from examples.own_model.config import Starcoder2Config
from examples.own_model.model import GeluFeedForward, Starcoder2


class OutsideUnits(Starcoder2):
    """Has a parameter that no unit holds."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Linear(config.dim, config.dim, bias=False)


class WholeOutput(Starcoder2):
    """Sums what every tensor-parallel rank computes whole."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.feed_forward.plan_parallel = lambda: mg.plan_column_row_pair(["c_fc.weight"], [])


class OtherInputs(Starcoder2):
    """Reads something else than it says."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def forward(self, tokens, targets, *, call=mg.call_module):
        return super().forward(tokens, tokens, targets, call=call)


class Dropping(Starcoder2):
    """Draws random numbers with torch's generator."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def run(self, tokens, call):
        return F.dropout(super().run(tokens, call), 0.1)


class HalfMap:
    """A map without one of the tensors."""

    MODEL_TYPES = hf.MODEL_TYPES
    is_ignored = staticmethod(hf.is_ignored)
    from_hf_config, to_hf_config = staticmethod(hf.from_hf_config), staticmethod(hf.to_hf_config)

    @staticmethod
    def entries(config):
        return [entry for entry in hf.entries(config) if entry.ours != "layers.1.norm_2.bias"]


class HalfMapped(Starcoder2):
    """Has a tensor that its Hugging Face map does not name."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    hf = HalfMap


class RankReader(Starcoder2):
    """Computes something else on one of the ranks."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def run(self, tokens, call):
        h = super().run(tokens, call)
        return h if os.environ.get("RANK", "0") == "0" else h * 1.0


class DirectCall(Starcoder2):
    """Runs its blocks itself."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def run(self, tokens, call):
        cos, sin = self.rope(tokens.shape[1], None)
        h = call(self.embedding, tokens)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return h


class Branching(Starcoder2):
    """Decides by data what to compute."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def run(self, tokens, call):
        h = super().run(tokens, call)
        return h if h.sum() > 0 else -h


class NoStart(Starcoder2):
    """Has a parameter whose starting values nobody describes."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.gain = nn.Parameter(torch.ones(config.dim))


class WrongShare(GeluFeedForward):
    """Divides by the number of channels it sees, which is another one on every mesh."""

    def forward(self, x):
        hidden = F.gelu(self.c_fc(x), approximate="tanh")
        return self.c_proj(hidden / hidden.shape[-1])


class ShareDependent(Starcoder2):
    """Computes something else under tensor parallelism, which only verify can see."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.layers:
            layer.feed_forward = WrongShare(config.dim, config.hidden_dim, out_std=0.02)

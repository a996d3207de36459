"""Frozen parameters: used by forward, without gradient, optimizer state or update.

A model freezes a parameter as any torch module does, by `requires_grad_(False)`; a run freezes more by name.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from monograph.errors import ConfigError


def find_matching(model: nn.Module, patterns: Sequence[str]) -> tuple[str, ...]:
    """The patterns that match a parameter of a model: one with fewer blocks lacks what others name."""
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    return tuple(pattern for pattern in patterns if any(fnmatchcase(name, pattern) for name in names))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the gradient from every parameter that a pattern matches; `*` stands for any characters, dots included."""
    named = list(model.named_parameters(remove_duplicate=False))
    for pattern in patterns:
        matched = [parameter for name, parameter in named if fnmatchcase(name, pattern)]
        if not matched:
            raise ConfigError(
                f"training.freeze has {pattern!r}, which no parameter matches",
                why=f"the parameters are {', '.join(name for name, _ in named[:4])}, ... ({len(named)})",
                do="write names of parameters, with * for any characters",
            )
        for parameter in matched:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for _, parameter in named):
        raise ConfigError("all parameters are frozen", why="nothing would be trained", do="freeze fewer of them")

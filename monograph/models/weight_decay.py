"""Which parameters weight decay shrinks: matrices, and stacks of them.

A vector is a norm or a bias. A module with parameters of several dims that are none of these, such as a bias for every
expert, names them: `no_decay = ("weight",)`.
"""

from torch import nn

from monograph.errors import ConfigError


def find_decayed(model: nn.Module) -> frozenset[str]:
    """The names of the parameters that are shrunk, as they are in the whole model (the first, when tied)."""
    spared: set[int] = set()
    for path, module in model.named_modules():
        own = dict(module.named_parameters())
        for name in getattr(module, "no_decay", ()):
            if name not in own:
                raise ConfigError(
                    f"{path or type(module).__qualname__} names {name} in no_decay",
                    why=f"its parameters are {', '.join(own) or 'none'}",
                    do="name parameters of the module itself",
                )
            spared.add(id(own[name]))
    named = model.named_parameters()
    return frozenset(name for name, each in named if each.ndim >= 2 and id(each) not in spared)

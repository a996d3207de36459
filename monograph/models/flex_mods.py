"""The mask and score functions of FlexAttention: those of a user, bound to what they ask for, and those of the kinds
of attention that families have.

A mask function is called with the numbers of the sequence, head, query and key as scalar tensors, and returns whether
the query sees the key; a score function gets the score first, and returns another:

    def within_64(batch, head, query, key):
        return (query >= key) & (query - key < 64)

    def alibi(score, batch, head, query, key, *, n_heads):
        return score - (query - key) * torch.exp2(-8.0 * (head + 1) / n_heads)

What else they need they ask for by name: `n_heads`, the heads of the whole model; `kind`, the name of the layer's kind
of attention; and the tensors `documents`, `positions` and `tokens`, int [batch, sequence].
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from monograph.compat.flex import ModFunction
from monograph.config.references import name_of
from monograph.errors import ConfigError
from monograph.kernels.flex_attention import FlexOp
from monograph.models.attention_kind import AttentionKind

MASK_SCALARS, SCORE_SCALARS = 4, 5
TENSORS = ("documents", "positions", "tokens")
CONSTANTS = ("n_heads", "kind")


@dataclass(frozen=True)
class FlexSpec:
    """All that decides what FlexAttention computes in the layers of one kind."""

    kind: AttentionKind
    n_heads: int
    mask_mod: Callable[..., Any] | None = None
    """None for what the kind says."""
    score_mod: Callable[..., Any] | None = None
    has_documents: bool = False

    @property
    def mask_names(self) -> tuple[str, ...]:
        """The tensors that the mask function gets."""
        wanted = find_wanted(self.mask_mod, MASK_SCALARS) if self.mask_mod else self.kind_names
        return sort_names({*wanted, *(("documents",) if self.has_documents else ())})

    @property
    def score_names(self) -> tuple[str, ...]:
        """The tensors that the score function gets."""
        return sort_names(find_wanted(self.score_mod, SCORE_SCALARS)) if self.score_mod else ()

    @property
    def kind_names(self) -> tuple[str, ...]:
        return ("positions",) if self.kind.chunk and self.has_documents else ()

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that either gets."""
        return sort_names({*self.mask_names, *self.score_names})

    def check(self) -> None:
        """Refuse functions that cannot be called, or ask for what the model does not have."""
        for mod, scalars, field in (
            (self.mask_mod, MASK_SCALARS, "mask_mod"),
            (self.score_mod, SCORE_SCALARS, "score_mod"),
        ):
            if mod is not None:
                check_mod(mod, scalars, field, has_documents=self.has_documents)


def bind_mask(spec: FlexSpec) -> ModFunction:
    """Whether a query sees a key, which in packed documents is one of the same document; of scalars, then tensors.

    One tensor more than it has names is the number of a rank's first head.
    """
    mod, kind, names, has_documents = spec.mask_mod, spec.kind, spec.mask_names, spec.has_documents
    asked = find_asked(mod, MASK_SCALARS) if mod else ()
    constants: dict[str, Any] = {"n_heads": spec.n_heads, "kind": kind.name}

    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *tensors: Tensor) -> Tensor:
        known = constants | dict(zip(names, tensors, strict=False))
        head = head + tensors[-1] if len(tensors) > len(names) else head
        if mod is None:
            seen = see_kind(kind, query, key, batch, known.get("positions"))
        else:
            seen = mod(batch, head, query, key, **{name: known[name] for name in asked})
        if has_documents:
            documents = known["documents"]
            seen = seen & (documents[batch, query] == documents[batch, key])
        return seen

    return mask


def bind_score(spec: FlexSpec) -> ModFunction:
    """The score of scalars, then tensors; one tensor more than it has names is the number of the first head."""
    mod, names = spec.score_mod, spec.score_names
    asked = find_asked(mod, SCORE_SCALARS) if mod else ()
    constants = {"n_heads": spec.n_heads, "kind": spec.kind.name}

    def score(value: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *tensors: Tensor) -> Tensor:
        if mod is None:
            return value
        known = constants | dict(zip(names, tensors, strict=False))
        head = head + tensors[-1] if len(tensors) > len(names) else head
        return mod(value, batch, head, query, key, **{name: known[name] for name in asked})

    return score


def see_kind(kind: AttentionKind, query: Tensor, key: Tensor, batch: Tensor, positions: Tensor | None) -> Tensor:
    """What a query sees of its sequence by the kind of attention: a chunk begins with its document."""
    seen = query >= key if kind.causal else query == query
    if kind.window:
        seen = seen & (query - key < kind.window)
    if kind.chunk and positions is not None:
        seen = seen & (positions[batch, query] // kind.chunk == positions[batch, key] // kind.chunk)
    elif kind.chunk:
        seen = seen & (query // kind.chunk == key // kind.chunk)
    return seen


def find_asked(mod: Callable[..., Any], scalars: int) -> tuple[str, ...]:
    """The names of a function's arguments after its scalars."""
    return tuple(inspect.signature(mod).parameters)[scalars:]


def find_wanted(mod: Callable[..., Any], scalars: int) -> tuple[str, ...]:
    """The tensors that a function asks for."""
    return tuple(name for name in find_asked(mod, scalars) if name in TENSORS)


def sort_names(names: Any) -> tuple[str, ...]:
    """In one order, whoever asks."""
    return tuple(name for name in TENSORS if name in names)


def check_mod(mod: Callable[..., Any], scalars: int, field: str, *, has_documents: bool) -> None:
    """Refuse a function with other arguments than it can be given, or with tensors of its own."""
    what = f"attention.{field} is {name_of(mod)}"
    given = ("score, " if scalars == SCORE_SCALARS else "") + "batch, head, query, key"
    parameters = list(inspect.signature(mod).parameters.values())
    if len(parameters) < scalars or any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
        raise ConfigError(
            f"{what}, which takes {inspect.signature(mod)}",
            why=f"it is called with {given}, and by name with what it asks for of {', '.join((*CONSTANTS, *TENSORS))}",
            do=f"def {mod.__name__}({given}, *, n_heads): ...",
        )
    unknown = [name for name in find_asked(mod, scalars) if name not in (*TENSORS, *CONSTANTS)]
    if unknown:
        raise ConfigError(
            f"{what}, which asks for {', '.join(unknown)}",
            why=f"after {given} a function can ask for {', '.join((*CONSTANTS, *TENSORS))}",
        )
    if "documents" in find_asked(mod, scalars) and not has_documents:
        raise ConfigError(
            f"{what}, which asks for documents, and model.mask is causal",
            why="a causal model takes a sequence as one text, whatever was packed into it",
            do="--model.mask document",
        )
    held = find_held_tensors(mod)
    if held:
        raise ConfigError(
            f"{what}, which reads the tensor {held[0]} of its module",
            why="a captured step has no tensors but its inputs and parameters",
            do="compute it from the numbers of the head, query and key, or write its numbers into the function",
        )


def find_held_tensors(mod: Callable[..., Any]) -> list[str]:
    """Tensors that a function reads from its module or closes over, by name."""
    try:
        read = inspect.getclosurevars(mod)
    except TypeError:  # not a Python function
        return []
    return [name for name, value in {**read.globals, **read.nonlocals}.items() if isinstance(value, torch.Tensor)]


@cache
def load_flex(spec: FlexSpec) -> FlexOp:
    """The op of these functions: one for all layers, so that it is traced and compiled once."""
    return FlexOp(spec.kind.name, bind_score(spec), bind_mask(spec))

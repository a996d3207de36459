"""What a model must say about itself: everything else in the package knows a model by this class alone.

A model is a list of units that run one after the other: what is gathered, cast, captured, recomputed and checkpointed
as one. `forward` calls each of them through `call`, so that whoever runs the model can do so:

    class Tiny(Model):
        Config = TinyConfig  # a dataclass(kw_only=True, slots=True) that derives from ModelConfig

        def __init__(self, config: TinyConfig) -> None:
            super().__init__()
            self.embedding = nn.Embedding(config.vocab_size, config.dim)
            self.layers = nn.ModuleList(MyBlock(config) for _ in range(config.n_layers))
            self.head = MyHead(config)

        def units(self) -> list[Unit]:
            return [Unit("embedding"), *blocks_of("layers", self.layers), Unit("head")]

        def forward(self, tokens, labels, targets, *, call=call_module) -> StepOutput:
            h = call(self.embedding, tokens)
            for layer in self.layers:
                h = call(layer, h)
            return StepOutput.of(call(self.head, h, labels) / targets)

The tensors of a micro-batch (`batch_spec`) and the counts of the whole update (`normalizers`) are arguments of
`forward`, by name. Everything else has a default here.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.labels import IGNORED_LABEL
from monograph.models.flops import FlopsPerToken, count_model_flops
from monograph.models.hf_map import HfFamily
from monograph.models.init import InitSpec, plan_init
from monograph.models.model_config import ModelConfig
from monograph.models.parallel_plan import ParallelPlan, collect_plan
from monograph.models.sequence_part import SequencePart

SEED = "seed"
"""The scalar input of a step whose model draws random numbers."""


class StepOutput(NamedTuple):
    """What the forward of one micro-batch returns."""

    loss: Tensor
    """This call's share of the reported loss: scalar, fp32, divided by counts of the whole update."""
    objective: Tensor
    """What training differentiates: the loss plus weighted auxiliary losses; the loss itself where there are none."""
    metrics: dict[str, Tensor]
    """Sums over this call's tokens, to be added up over micro-batches and ranks."""

    @classmethod
    def of(cls, loss: Tensor, **metrics: Tensor) -> "StepOutput":
        """The output of a model without auxiliary losses."""
        return cls(loss, loss, metrics)


@dataclass(frozen=True)
class BatchTensor:
    """One tensor of a micro-batch; its dims are numbers, or `batch` and `sequence`, which the run decides."""

    dims: tuple[str | int, ...] = ("batch", "sequence")
    dtype: torch.dtype = torch.int64

    def shape(self, *, batch: int, sequence: int) -> tuple[int, ...]:
        """The shape in a run with these sizes."""
        sizes = {"batch": batch, "sequence": sequence}
        return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.dims)

    @property
    def sequence_dim(self) -> int | None:
        """Which dim is the sequence; None where it has none."""
        return self.dims.index("sequence") if "sequence" in self.dims else None


@dataclass(frozen=True)
class Unit:
    """A part of a model that runs as one."""

    path: str
    is_block: bool = False
    """Whether it is one of many that follow each other: those that are identical are captured once and copied. What
    a block gets besides the carry is the same for all blocks."""
    carry: tuple[str, ...] = ("h",)
    """Names of its leading results, which are the leading arguments of the next unit: all that goes from unit to unit,
    and where a pipeline is split. The last unit hands on nothing."""
    others: int = 0
    """How many results follow the carry. On a pipeline rank that does not run the unit they are None, and the last unit
    returns 0: `forward` computes what it can without them, and its metrics are sums over stages."""


def blocks_of(path: str, blocks: nn.ModuleList, *, carry: tuple[str, ...] = ("h",), others: int = 0) -> list[Unit]:
    """A unit for every entry of a list of blocks, which hand on values of these names and return `others` more."""
    return [Unit(f"{path}.{number}", is_block=True, carry=carry, others=others) for number in range(len(blocks))]


def call_module(module: nn.Module, *args: Any) -> Any:
    """The plain way to run a unit."""
    return module(*args)


class Model(nn.Module, Configurable):
    """A model that can be trained: what it reads, which units it consists of, and what it computes with them."""

    Config: ClassVar[Any] = ModelConfig
    hf: ClassVar[HfFamily | None] = None
    """Its checkpoints in Hugging Face's form, where they have one."""

    @property
    def batch_spec(self) -> Mapping[str, BatchTensor]:
        """The tensors it reads of a micro-batch: arguments of `forward`."""
        return {"tokens": BatchTensor(), "labels": BatchTensor()}

    @property
    def normalizers(self) -> tuple[str, ...]:
        """Counts over the whole update that `forward` divides by: int64 scalars, arguments of it."""
        return ("targets",)

    def count_normalizers(self, batch: Mapping[str, Tensor]) -> dict[str, int]:
        """What one micro-batch, in host memory, contributes to each of them."""
        return {"targets": int((batch["labels"] != IGNORED_LABEL).sum())}

    @property
    def draws_random(self) -> bool:
        """Whether `forward` gets `seed`, the run's seed as an int64 scalar: for `mg.Dropout`, `mg.random_uniform`."""
        return False

    def step_inputs(self, batch: Mapping[str, Tensor], part: SequencePart) -> dict[str, Tensor]:
        """The tensors that `forward` gets, from a whole micro-batch in host memory, on a rank with this part of every
        sequence. What a step needs to know about the data as a whole, such as tables of documents, is computed here."""
        spec = self.batch_spec
        missing = [name for name in spec if name not in batch]
        if missing:
            raise ConfigError(
                f"{type(self).__qualname__} reads {', '.join(missing)}, and the batch has {', '.join(batch)}",
                why="a batch has what its data source puts into samples",
                do="let the source provide it, or take it out of batch_spec of the model",
            )
        return {name: part.take(batch[name], spec[name].sequence_dim) for name in spec}

    def units(self) -> list[Unit]:
        """The units in the order they run."""
        raise NotImplementedError(f"{type(self).__qualname__} does not say which units it consists of")

    def forward(self, *args: Any, **inputs: Any) -> StepOutput:
        """The loss of a micro-batch. Arguments: the tensors of `batch_spec` and the counts of `normalizers` by name,
        and `call`, which runs a unit with positional arguments: `call(unit, ...)`."""
        raise NotImplementedError(f"{type(self).__qualname__} has no forward")

    def plan_parameters(self) -> dict[str, InitSpec]:
        """How every parameter starts."""
        return plan_init(self)

    def parallel_plan(self) -> ParallelPlan:
        """How it is sharded over tensor- and expert-parallel ranks: what its modules say."""
        return collect_plan(self)

    def flops(self, seq_len: int) -> FlopsPerToken:
        """What a token costs."""
        return count_model_flops(self, seq_len)

    def finish_update(self, metrics: Mapping[str, Tensor]) -> None:
        """Change what changes once an update, from the sums of its metrics over all micro-batches and ranks."""

    def new_cache(self, batch: int, capacity: int, padding: Sequence[int] = ()) -> Any:
        """What `predict(tokens, cache=...)` fills and reads, so that tokens are read once; None where there is none.

        There is room for `capacity` tokens in each of `batch` rows; the first `padding` of a row are not part of it.
        """
        return None

    def predict(self, *args: Any, **inputs: Any) -> Tensor:
        """What it says about a batch without labels: for a language model, logits [batch, sequence, vocabulary].

        With `cache=`, made by `new_cache`, the tokens follow those that were given before.
        """
        raise ConfigError(
            f"{type(self).__qualname__} cannot predict",
            why="its class does not define it",
            do="define predict(...) in the model",
        )

    def unit_modules(self) -> dict[str, nn.Module]:
        """The units by path, in order."""
        return {unit.path: self.get_submodule(unit.path) for unit in self.units()}

    def blocks(self) -> dict[str, nn.Module]:
        """The units that are blocks, by path, in order."""
        return {unit.path: self.get_submodule(unit.path) for unit in self.units() if unit.is_block}


def find_scalars(model: Model) -> tuple[str, ...]:
    """The names of the scalars that its `forward` gets: counts, and the seed."""
    return (*model.normalizers, SEED) if model.draws_random else tuple(model.normalizers)


def find_unit(name: str, units: Collection[str]) -> str:
    """The path of the unit that a module, or a parameter, belongs to; empty where it belongs to none."""
    path = name
    while path and path not in units:
        path = path.rpartition(".")[0]
    return path


UnitCall = Callable[..., Any]
"""Runs a unit: `call(unit, *arguments)`."""

"""monograph: the whole training step as one graph.

    import monograph as mg

    config = mg.load_recipe("llama3_debugmodel")
    step = mg.run_passes(mg.capture(config))
    print(step.text())
    mg.train(config)

What is named in `__all__` is promised; everything else may change. Names are loaded when they are first used, so that
the command line can answer wrong input before torch is imported.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from monograph.config.references import load_reference

if TYPE_CHECKING:
    from monograph.annotate import annotate
    from monograph.api import CapturedStep, capture, run_passes, verify
    from monograph.axes import Axis
    from monograph.config.configurable import Configurable
    from monograph.config.json_form import from_json, to_json
    from monograph.errors import ConfigError
    from monograph.graph.facts import Facts
    from monograph.graph.step_graph import StepGraph
    from monograph.graph.tags import tag_of
    from monograph.kernels.check_op import check_op
    from monograph.kernels.custom_op import CustomOp, custom_op
    from monograph.kernels.random import random_uniform
    from monograph.models.attention_core import AttentionCore
    from monograph.models.attention_kind import AttentionKind
    from monograph.models.dropout import Dropout
    from monograph.models.model import (
        BatchTensor,
        Model,
        StepOutput,
        Unit,
        UnitCall,
        blocks_of,
        call_module,
    )
    from monograph.models.model_config import DividedSize, ModelConfig, SequenceLimit
    from monograph.models.parallel_plan import (
        ParallelPlan,
        plan_column_row_pair,
        plan_vocab_embedding,
        plan_vocab_head,
        shard_columns,
        shard_rows,
    )
    from monograph.models.sequence_part import SequencePart
    from monograph.passes.base import Pass, Property
    from monograph.recipes.catalog import load_recipe
    from monograph.run import build_step, train
    from monograph.train.config import TrainerConfig
    from monograph.train.data.indexed_source import IndexedSource
    from monograph.train.data.source import DataSource
    from monograph.train.data.stream_source import StreamSource
    from monograph.train.data.text_source import TextSource
    from monograph.train.lr_scheduler import LrScheduler
    from monograph.train.optimizer import Optimizer

__version__ = "0.1.0"
__all__ = [
    "AttentionCore",
    "AttentionKind",
    "Axis",
    "BatchTensor",
    "CapturedStep",
    "ConfigError",
    "Configurable",
    "CustomOp",
    "DataSource",
    "DividedSize",
    "Dropout",
    "Facts",
    "IndexedSource",
    "LrScheduler",
    "Model",
    "ModelConfig",
    "Optimizer",
    "ParallelPlan",
    "Pass",
    "Property",
    "SequenceLimit",
    "SequencePart",
    "StepGraph",
    "StepOutput",
    "StreamSource",
    "TextSource",
    "TrainerConfig",
    "Unit",
    "UnitCall",
    "annotate",
    "blocks_of",
    "build_step",
    "call_module",
    "capture",
    "check_op",
    "custom_op",
    "from_json",
    "load_recipe",
    "plan_column_row_pair",
    "plan_vocab_embedding",
    "plan_vocab_head",
    "random_uniform",
    "run_passes",
    "shard_columns",
    "shard_rows",
    "tag_of",
    "to_json",
    "train",
    "verify",
]

_HOMES = {
    "monograph.annotate": "annotate",
    "monograph.axes": "Axis",
    "monograph.api": "CapturedStep capture run_passes verify",
    "monograph.config.configurable": "Configurable",
    "monograph.config.json_form": "from_json to_json",
    "monograph.errors": "ConfigError",
    "monograph.graph.facts": "Facts",
    "monograph.graph.step_graph": "StepGraph",
    "monograph.graph.tags": "tag_of",
    "monograph.kernels.check_op": "check_op",
    "monograph.kernels.custom_op": "CustomOp custom_op",
    "monograph.kernels.random": "random_uniform",
    "monograph.models.attention_core": "AttentionCore",
    "monograph.models.attention_kind": "AttentionKind",
    "monograph.models.dropout": "Dropout",
    "monograph.models.model": "BatchTensor Model StepOutput Unit UnitCall blocks_of call_module",
    "monograph.models.model_config": "ModelConfig SequenceLimit DividedSize",
    "monograph.models.parallel_plan": (
        "ParallelPlan plan_column_row_pair plan_vocab_embedding plan_vocab_head shard_columns shard_rows"
    ),
    "monograph.models.sequence_part": "SequencePart",
    "monograph.passes.base": "Pass Property",
    "monograph.recipes.catalog": "load_recipe",
    "monograph.run": "build_step train",
    "monograph.train.config": "TrainerConfig",
    "monograph.train.data.indexed_source": "IndexedSource",
    "monograph.train.data.source": "DataSource",
    "monograph.train.data.stream_source": "StreamSource",
    "monograph.train.data.text_source": "TextSource",
    "monograph.train.lr_scheduler": "LrScheduler",
    "monograph.train.optimizer": "Optimizer",
}
"""Module -> the promised names that live there."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}


class CallableModule(ModuleType):
    """A folder or file of the package that shares its name with a promised function: calling it calls the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)

    @property
    def __wrapped__(self) -> Any:
        """The function, which help and signatures are taken from."""
        return _load(self.__name__.rpartition(".")[2])


class PackageModule(ModuleType):
    """The package itself: what is imported into it under the name of a promised function can be called."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _MODULES:
            value.__class__ = CallableModule
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = PackageModule


def _load(name: str) -> Any:
    return load_reference(f"{_MODULES[name]}:{name}")


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'monograph' has no attribute {name!r}")
    value = _load(name)
    return globals().setdefault(name, value)  # a module of that name, if loading it has brought one in


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

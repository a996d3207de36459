"""monograph: the whole training step as one graph.

    import monograph as mg

    config = mg.load_recipe("llama3_debugmodel")
    step = mg.run_passes(mg.capture(config))
    print(step.text())
    mg.train(config)

What is named in `__all__` is promised; everything else may change. Names are loaded when they are first used, so that
the command line can answer wrong input before torch is imported.
"""

from typing import TYPE_CHECKING, Any

from monograph.config.references import load_reference

if TYPE_CHECKING:
    from monograph.annotate import annotate
    from monograph.api import CapturedStep, capture, run_passes, verify
    from monograph.config.configurable import Configurable
    from monograph.config.json_form import from_json, to_json
    from monograph.errors import ConfigError
    from monograph.graph.facts import Facts
    from monograph.graph.step_graph import StepGraph
    from monograph.graph.tags import tag_of
    from monograph.models.model import (
        BatchTensor,
        Model,
        StepOutput,
        Unit,
        UnitCall,
        blocks_of,
        call_module,
    )
    from monograph.models.model_config import ModelConfig
    from monograph.models.parallel_plan import (
        ParallelPlan,
        plan_column_row_pair,
        plan_vocab_embedding,
        plan_vocab_head,
        shard_columns,
        shard_rows,
    )
    from monograph.passes.base import Pass
    from monograph.recipes.catalog import load_recipe
    from monograph.run import build_step, train
    from monograph.train.config import TrainerConfig

__version__ = "0.1.0"
__all__ = [
    "BatchTensor",
    "CapturedStep",
    "ConfigError",
    "Configurable",
    "Facts",
    "Model",
    "ModelConfig",
    "ParallelPlan",
    "Pass",
    "StepGraph",
    "StepOutput",
    "TrainerConfig",
    "Unit",
    "UnitCall",
    "annotate",
    "blocks_of",
    "build_step",
    "call_module",
    "capture",
    "from_json",
    "load_recipe",
    "plan_column_row_pair",
    "plan_vocab_embedding",
    "plan_vocab_head",
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
    "monograph.api": "CapturedStep capture run_passes verify",
    "monograph.config.configurable": "Configurable",
    "monograph.config.json_form": "from_json to_json",
    "monograph.errors": "ConfigError",
    "monograph.graph.facts": "Facts",
    "monograph.graph.step_graph": "StepGraph",
    "monograph.graph.tags": "tag_of",
    "monograph.models.model": "BatchTensor Model StepOutput Unit UnitCall blocks_of call_module",
    "monograph.models.model_config": "ModelConfig",
    "monograph.models.parallel_plan": (
        "ParallelPlan plan_column_row_pair plan_vocab_embedding plan_vocab_head shard_columns shard_rows"
    ),
    "monograph.passes.base": "Pass",
    "monograph.recipes.catalog": "load_recipe",
    "monograph.run": "build_step train",
    "monograph.train.config": "TrainerConfig",
}
"""Module -> the promised names that live there."""
_MODULES = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'monograph' has no attribute {name!r}")
    value = load_reference(f"{_MODULES[name]}:{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

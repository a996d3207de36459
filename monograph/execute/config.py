"""How the step is run: op by op, or compiled; and what backward keeps. Loads without torch."""

from dataclasses import dataclass, field
from typing import Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.parallel.overlap_config import ExpertOverlapConfig

CompileComponent = Literal["model", "loss", "optimizer"]


@dataclass(kw_only=True, slots=True)
class CompileConfig(Configurable.Config):
    """What is compiled, and by whom."""

    mode: Literal["eager", "layer", "graph"] = "eager"
    """eager: op by op; layer: every block is compiled; graph: the whole step is captured once and run as one graph."""
    backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """inductor: fused kernels; aot_eager, eager: the same graphs op by op, to find out what changes numbers."""
    components: tuple[CompileComponent, ...] = ("model",)
    """What layer mode compiles: the blocks (model), the loss, the optimizer."""

    numerics: Literal["exact", "fast"] = "exact"
    """graph mode: exact runs passes that keep eager's bits; fast adds those that round differently and are faster, and
    the single-pass optimizer."""
    cuda_graph: Literal["off", "auto", "full"] = "auto"
    """graph mode: record the step as a CUDA graph; auto: on a GPU, where every node
    can be recorded; full: or an error that lists the reasons."""

    artifact: str = ""
    """graph mode: folder of an artifact (`monograph precompile`) to run instead of capturing and compiling."""
    artifact_on_mismatch: Literal["error", "compile"] = "error"
    """An artifact made for another run is an error, or compile: say so and capture as if there were none."""
    artifact_key_file: str = ""
    """File with the key that artifacts must be signed with; empty takes MONOGRAPH_ARTIFACT_KEY, if it is set."""
    artifact_trust_shared_folder: bool = False
    """Load compiled code of an artifact that no key vouches for although other users can write to its folder."""

    expert_overlap: ExpertOverlapConfig = field(default_factory=ExpertOverlapConfig)
    """Overlap of experts' all_to_alls with compute."""

    def check(self) -> None:
        self.check_overlap()
        if self.artifact and self.mode != "graph":
            raise ConfigError(
                f"artifact is {self.artifact} with mode {self.mode}",
                why="an artifact holds the captured step, which only graph mode runs",
                do="--compile.mode graph",
            )
        if self.mode == "layer" and (not self.components or len(set(self.components)) != len(self.components)):
            raise ConfigError(
                f"components is {list(self.components)}",
                why="it lists each thing to compile once",
                do="--compile.components model loss",
            )

    def check_overlap(self) -> None:
        """Chunks need a step that is captured, or at least gathers its parameters by functions."""
        strategy = self.expert_overlap.strategy
        if self.mode == "layer" and strategy != "off":
            raise ConfigError(
                f"expert_overlap.strategy is {strategy} with mode layer",
                why="blocks are compiled one by one, and no exchange can leave the one it is in",
                do="--compile.mode graph, or --compile.expert_overlap.strategy off",
            )
        if self.mode != "graph" and strategy == "graph":
            raise ConfigError(
                f"expert_overlap.strategy is graph with mode {self.mode}",
                why="the pass that cuts the step needs a captured one",
                do="--compile.mode graph, or --compile.expert_overlap.strategy trace to cut without a graph",
            )


@dataclass(kw_only=True, slots=True)
class ActivationCheckpointConfig(Configurable.Config):
    """What a block keeps for backward, and what it recomputes."""

    mode: Literal["none", "full", "selective"] = "none"
    """none keeps all; full keeps a block's input; selective also keeps matmuls, attention, top-k and exchanges."""

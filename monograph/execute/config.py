"""How the step is run: op by op, or compiled; and what backward keeps. Loads without torch."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.parallel.overlap_config import ExpertOverlapConfig

CompileComponent = Literal["model", "loss", "optimizer"]


@dataclass(kw_only=True, slots=True)
class CompileConfig(Configurable.Config):
    """What is compiled, and by whom."""

    mode: Literal["eager", "layer", "graph"] = "graph"
    """eager: op by op; layer: every block is compiled; graph: the whole step is captured once and run as one graph."""
    backend: Literal["inductor", "aot_eager", "eager"] = "inductor"
    """inductor: fused kernels; aot_eager, eager: the same graphs op by op, to find out what changes numbers."""
    components: tuple[CompileComponent, ...] = ("model",)
    """What layer mode compiles: the blocks (model), the loss, the optimizer."""

    numerics: Literal["exact", "fast", "float8"] = "exact"
    """graph mode: exact runs passes that keep eager's bits; fast adds those that round differently and are faster, and
    the single-pass optimizer; float8 adds matmuls in float8 (pass quantize_matmuls)."""
    cuda_graph: Literal["off", "auto", "require"] = "auto"
    """graph mode: record the step as a CUDA graph; auto: on a GPU, where every node
    can be recorded; require: or an error that lists the reasons."""

    tune_kernels: bool = False
    """graph mode: time the settings of custom kernels on this GPU before the first step, once for every new size; found
    settings change no bit, and later runs on such a GPU use them without this flag."""

    cache: Literal["on", "off"] = "on"
    """graph mode: on keeps the captured step in ~/.cache/monograph/steps (or $XDG_CACHE_HOME), from where `monograph
    train` reads it when nothing that decides it has changed; off captures it at every start."""

    artifact: str = ""
    """graph mode: folder of an artifact (`monograph precompile`) to run instead of capturing and compiling."""
    artifact_on_mismatch: Literal["error", "compile"] = "error"
    """An artifact made for another run is an error, or compile: say so and capture as if there were none."""
    artifact_cache: str = ""
    """Folder on a disk of each node, to which the first rank of the node copies the artifact for all of them; empty for
    no copy: then the others read the shared folder after the first."""
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
        if self.artifact_cache and not self.artifact:
            raise ConfigError(
                f"artifact_cache is {self.artifact_cache} and artifact is empty",
                why="there is no artifact to copy",
                do="--compile.artifact DIR",
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
    """What forward saves for backward, and what backward recomputes; the same setting in every compile.mode."""

    mode: Literal["auto", "none", "selective", "full", "min_cut", "budget"] = "auto"
    """none saves all; selective: matmuls, attention, top-k, all_to_alls; full: block inputs; and in graph mode min_cut:
    what selective saves or less, in the fewest bytes; budget: what fits. auto: none in eager and layer mode, selective
    in graph mode, min_cut with compile.numerics fast or float8."""
    save: Names = ()
    """graph mode, full: also save these, each as PATH::OP, e.g. `layers.*.moe.router.gate::mm`."""
    budget_gib: float = 0.0
    """graph mode, budget: the most that may cross from forward to backward, on one rank."""

    def check(self) -> None:
        if self.save and self.mode != "full":
            raise ConfigError(
                f"save is {list(self.save)} with mode {self.mode}",
                why="selectors say what full recomputation should save",
                do="--activation_checkpoint.mode full",
            )
        for selector in self.save:
            path, found, op = selector.partition("::")
            if not (path and found and op):
                raise ConfigError(
                    f"save has {selector!r}",
                    why="it is not of the form PATH::OP",
                    do="for example: --activation_checkpoint.save 'layers.*.attention.wo::mm'",
                )
        check_range(self, "budget_gib", 1e-9, 1e9, zero="for no budget")
        if (self.mode == "budget") != (self.budget_gib > 0):
            raise ConfigError(
                f"mode is {self.mode} and budget_gib is {self.budget_gib}",
                why="a budget is used by mode budget, and only there",
                do="--activation_checkpoint.mode budget --activation_checkpoint.budget_gib 8",
            )

    def check_run(self, compile: CompileConfig, off: Collection[str]) -> None:
        """Refuse what the way the step runs, or a pass that is off, cannot do."""
        asked = f"mode is {self.mode}" if self.mode in ("min_cut", "budget") else f"save is {list(self.save)}"
        if compile.mode != "graph" and (self.save or self.mode in ("min_cut", "budget")):
            raise ConfigError(
                f"activation_checkpoint.{asked} and compile.mode is {compile.mode}",
                why="it is decided for the captured step",
                do="--compile.mode graph, or --activation_checkpoint.mode selective",
            )
        missing = [name for name in ("choose_saved", "recompute") if name in off]
        if compile.mode == "graph" and self.mode not in ("auto", "none") and missing:
            raise ConfigError(
                f"activation_checkpoint.mode is {self.mode} and passes.off has {missing[0]}",
                why=f"without {missing[0]} everything is saved",
                do=f"remove {missing[0]} from passes.off, or --activation_checkpoint.mode none",
            )

    def resolve(self, compile: CompileConfig) -> Literal["none", "selective", "full", "min_cut", "budget"]:
        """The mode with auto decided."""
        if self.mode != "auto":
            return self.mode
        if compile.mode != "graph":
            return "none"
        return "selective" if compile.numerics == "exact" else "min_cut"

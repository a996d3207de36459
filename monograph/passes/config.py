"""The options of the passes, and which of them run. Loads without torch: a wrong pass name is answered at once."""

import difflib
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.passes.order import ORDER

SavePolicy = Literal["all", "default", "min_cut", "full", "budget"]


@dataclass(kw_only=True, slots=True)
class ChooseSavedConfig(Configurable.Config):
    """What forward keeps for backward."""

    owner: ClassVar[str] = "monograph.passes.memory.choose_saved:ChooseSaved"
    policy: SavePolicy = "default"
    """all; default: matmuls, attention, top-k, exchanges; min_cut: fewest bytes; full: block inputs; budget: fits."""
    save: tuple[str, ...] = ()
    """With full: also keep these, each as PATH::OP, e.g. `layers.*.moe.router.gate::mm`."""
    budget_gib: float = 0.0
    """With budget: the most that may cross from forward to backward, on one rank."""

    def check(self) -> None:
        if self.save and self.policy != "full":
            raise ConfigError(
                f"save is {list(self.save)} with policy {self.policy}",
                why="selectors say what full recomputation should keep",
                do="--passes.choose_saved.policy full",
            )
        for selector in self.save:
            path, found, op = selector.partition("::")
            if not (path and found and op):
                raise ConfigError(
                    f"{selector!r} selects nothing", why="a selector is PATH::OP", do="e.g. layers.*.attention.wo::mm"
                )
        check_range(self, "budget_gib", 1e-9, 1e9, zero="for no budget")
        if (self.policy == "budget") != (self.budget_gib > 0):
            raise ConfigError(
                f"policy is {self.policy} and budget_gib is {self.budget_gib}",
                why="a budget is used by policy budget, and only there",
                do="--passes.choose_saved.policy budget --passes.choose_saved.budget_gib 8",
            )


@dataclass(kw_only=True, slots=True)
class OffloadActivationsConfig(Configurable.Config):
    """What waits for backward in the host's memory."""

    owner: ClassVar[str] = "monograph.passes.memory.offload_activations:OffloadActivations"
    budget_gib: float = 0.0
    """The most that moves to the host, on one rank; 0 keeps everything on the device."""
    prefetch_blocks: int = 1
    """Bring a value back this many blocks before backward needs it."""
    min_bytes: int = 4096
    """Smaller values are not worth the trip."""

    def check(self) -> None:
        check_range(self, "budget_gib", 1e-9, 1e9, zero="to keep everything on the device")
        for name, least in (("prefetch_blocks", 0), ("min_bytes", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", why=f"it must be at least {least}")


@dataclass(kw_only=True, slots=True)
class NarrowGradientsConfig(Configurable.Config):
    """Which dtype gradients leave the step in."""

    owner: ClassVar[str] = "monograph.passes.memory.narrow_gradients:NarrowGradients"
    enabled: bool = False
    """Leave out the cast to the reduce dtype where nothing is added after it; needs a single_pass optimizer."""


@dataclass(kw_only=True, slots=True)
class BucketCollectivesConfig(Configurable.Config):
    """How collectives are joined."""

    owner: ClassVar[str] = "monograph.passes.comm.bucket_collectives:BucketCollectives"
    max_bytes: int = 256 << 20
    """Stop filling a bucket at this size."""

    def check(self) -> None:
        if self.max_bytes < 1:
            raise ConfigError(f"max_bytes is {self.max_bytes}", why="a bucket holds at least one parameter")


@dataclass(kw_only=True, slots=True)
class PrefetchAllGathersConfig(Configurable.Config):
    """How early collectives start and how late they are waited for."""

    owner: ClassVar[str] = "monograph.passes.comm.prefetch_all_gathers:PrefetchAllGathers"
    ahead: int = 1
    """Start a block's gather this many blocks before it runs."""

    def check(self) -> None:
        if self.ahead < 1:
            raise ConfigError(f"ahead is {self.ahead}", why="it counts blocks", do="--passes.off prefetch_all_gathers")


@dataclass(kw_only=True, slots=True)
class OverlapExpertsConfig(Configurable.Config):
    """The memory that hiding exchanges may cost."""

    owner: ClassVar[str] = "monograph.passes.overlap.overlap_experts:OverlapExperts"
    max_extra_bytes: int = 256 << 20
    """Work that fills a gap may keep this much alive longer than it would be."""

    def check(self) -> None:
        if self.max_extra_bytes < 0:
            raise ConfigError(f"max_extra_bytes is {self.max_extra_bytes}", why="it must be at least 0")


@dataclass(kw_only=True, slots=True)
class MergeMatmulsConfig(Configurable.Config):
    """Whether several matmuls become one."""

    owner: ClassVar[str] = "monograph.passes.compute.merge_matmuls:MergeMatmuls"
    enabled: bool = False
    """Join matmuls that share an operand or are added up; numbers change within rounding."""
    max_columns: int = 1024
    """Join only where one of the matmuls has no more columns than this: wide ones keep a GPU busy by themselves."""

    def check(self) -> None:
        if self.max_columns < 1:
            raise ConfigError(f"max_columns is {self.max_columns}", why="every matrix has a column")


@dataclass(kw_only=True, slots=True)
class CacheCastWeightsConfig(Configurable.Config):
    """How often parameters are cast."""

    owner: ClassVar[str] = "monograph.passes.memory.cache_cast_weights:CacheCastWeights"
    enabled: bool = False
    """Keep the weights in the compute dtype between updates; a single_pass optimizer writes them as it goes."""


@dataclass(kw_only=True, slots=True)
class MarkRegionsConfig(Configurable.Config):
    """Which parts of the step are compiled."""

    owner: ClassVar[str] = "monograph.passes.compile.mark_regions:MarkRegions"
    regions: tuple[str, ...] = ()
    """`blocks` for every block as a whole, `outside` for all that is in no block, names given with `annotate`."""


@dataclass(kw_only=True, slots=True)
class CompileWholeConfig(Configurable.Config):
    """Whether one compiler gets the whole step."""

    owner: ClassVar[str] = "monograph.passes.compile.compile_whole:CompileWhole"
    enabled: bool = False
    """Compile everything into fused kernels; numbers change within rounding."""


@dataclass(kw_only=True, slots=True)
class FuseSwigluEpilogueConfig(Configurable.Config):
    """Whether matmuls compute gates."""

    owner: ClassVar[str] = "monograph.passes.compute.fuse_swiglu_epilogue:FuseSwigluEpilogue"
    enabled: bool = False
    """Let matmuls compute the gates of their results; needs joined matmuls. Numbers change within rounding."""


@dataclass(kw_only=True, slots=True)
class PassesConfig(Configurable.Config):
    """The passes of graph mode, by name."""

    off: tuple[str, ...] = ()
    """Passes to leave out."""
    choose_saved: ChooseSavedConfig = field(default_factory=ChooseSavedConfig)
    """What forward keeps for backward."""
    offload_activations: OffloadActivationsConfig = field(default_factory=OffloadActivationsConfig)
    """What waits in the host's memory."""
    narrow_gradients: NarrowGradientsConfig = field(default_factory=NarrowGradientsConfig)
    """The dtype gradients leave the step in."""
    bucket_collectives: BucketCollectivesConfig = field(default_factory=BucketCollectivesConfig)
    """How collectives are joined."""
    prefetch_all_gathers: PrefetchAllGathersConfig = field(default_factory=PrefetchAllGathersConfig)
    """When collectives start."""
    overlap_experts: OverlapExpertsConfig = field(default_factory=OverlapExpertsConfig)
    """When chunks take turns."""
    merge_matmuls: MergeMatmulsConfig = field(default_factory=MergeMatmulsConfig)
    """Which matmuls are one."""
    cache_cast_weights: CacheCastWeightsConfig = field(default_factory=CacheCastWeightsConfig)
    """How often parameters are cast."""
    mark_regions: MarkRegionsConfig = field(default_factory=MarkRegionsConfig)
    """What is compiled."""
    compile_whole: CompileWholeConfig = field(default_factory=CompileWholeConfig)
    """Whether all of it is."""
    fuse_swiglu_epilogue: FuseSwigluEpilogueConfig = field(default_factory=FuseSwigluEpilogueConfig)
    """Whether matmuls compute gates."""

    order: ClassVar[dict[str, str]] = ORDER
    """Name -> class, in the order they run; a recipe with passes of its own subclasses this and changes it."""

    @property
    def has_compiler(self) -> bool:
        """Whether any part of the step is handed to a compiler."""
        return bool(self.mark_regions.regions) or self.compile_whole.enabled

    def check(self) -> None:
        for name in self.off:
            if name not in self.order:
                near = difflib.get_close_matches(name, self.order, n=1)
                raise ConfigError(
                    f"passes.off has {name!r}",
                    why="there is no pass of that name",
                    do=f"did you mean {near[0]}?" if near else "see `monograph passes`",
                )
        asked = {
            "offload_activations": self.offload_activations.budget_gib > 0,
            "narrow_gradients": self.narrow_gradients.enabled,
            "merge_matmuls": self.merge_matmuls.enabled,
            "cache_cast_weights": self.cache_cast_weights.enabled,
            "mark_regions": bool(self.mark_regions.regions),
            "compile_whole": self.compile_whole.enabled,
            "fuse_swiglu_epilogue": self.fuse_swiglu_epilogue.enabled,
        }
        if self.cache_cast_weights.enabled and self.compile_whole.enabled:
            raise ConfigError(
                "passes.cache_cast_weights and passes.compile_whole are both enabled",
                why="a step that is compiled whole casts its weights inside",
                do="leave one of them out",
            )
        if self.fuse_swiglu_epilogue.enabled and not self.merge_matmuls.enabled:
            raise ConfigError(
                "passes.fuse_swiglu_epilogue is enabled without passes.merge_matmuls",
                why="a gate is computed with the one matmul that both of its inputs come from",
                do="--passes.merge_matmuls.enabled true --passes.merge_matmuls.max_columns 65536",
            )
        for name in self.off:
            if asked.get(name):
                raise ConfigError(
                    f"passes.off has {name}, and passes.{name} asks for something",
                    why="it cannot be both left out and done",
                    do=f"take {name} out of passes.off, or its options back",
                )

"""What commands take besides a recipe's fields, as Configs: parsed, checked and explained like all the others."""

from dataclasses import dataclass, field

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.errors import ConfigError, did_you_mean
from monograph.launch.rank_limits import check_local_ranks
from monograph.passes.config import PassesConfig
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig

BENCH_MODES = ("eager", "layer", "exact", "fast", "float8", "inductor-regions", "inductor-whole")


@dataclass(kw_only=True, slots=True)
class RankOptions(Configurable.Config):
    """Commands that can start several ranks on this machine."""

    ranks: int = 0
    """Start this many local ranks; 0 is one process, or one of the ranks that torchrun started."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks must be >= 0, got {self.ranks}", why="it counts processes", do="--ranks 2")
        check_local_ranks(self.ranks)


@dataclass(kw_only=True, slots=True)
class TrainOptions(RankOptions):
    """`monograph train`."""

    quiet: bool = False
    """Print warnings and errors only: --metrics.progress off, --debug.log_level warning, and no summary."""


@dataclass(kw_only=True, slots=True)
class VerifyOptions(RankOptions):
    """`monograph verify`."""

    simulate: bool = False
    """Compute a small copy of the run for all ranks of the mesh in this process, in fp64; starts no ranks. `--ranks` is
    then the size of the mesh, by default what the degrees say."""
    each_pass: bool = False
    """With --simulate: compare the graph after each pass instead of the captured one and the last."""
    simulate_first: bool = True
    """With --ranks: simulate the mesh before its ranks are started."""

    def check(self) -> None:
        if not self.simulate:
            RankOptions.check(self)
            if self.each_pass:
                why = "only a simulation looks at single passes"
                raise ConfigError("--each_pass without --simulate", why=why, do="add --simulate")
        elif self.ranks < 0:
            raise ConfigError(f"--ranks must be >= 0, got {self.ranks}", why="it counts ranks", do="--ranks 256")


@dataclass(kw_only=True, slots=True)
class CompareArguments(Configurable.Config):
    """`monograph compare`."""

    left: str = ""
    """One run, as it would follow `monograph train`, in quotes."""
    right: str = ""
    """The other run."""
    tolerance: float = 0.0
    """Largest relative difference that counts as equal; 0 compares bit for bit."""

    def check(self) -> None:
        if self.tolerance < 0:
            raise ConfigError(f"--tolerance must be >= 0, got {self.tolerance}", do="--tolerance 1e-5")


@dataclass(kw_only=True, slots=True)
class ConfigOptions(Configurable.Config):
    """`monograph config`."""

    json: bool = False
    """Print the configuration as JSON."""


@dataclass(kw_only=True, slots=True)
class BenchOptions(Configurable.Config):
    """`monograph bench`."""

    modes: Names = ("eager", "layer", "exact", "fast")
    """What is measured; the first is what the others are compared with."""
    steps: int = 20
    """Steps that count, of each mode."""
    warmup: int = 5
    """Steps before them that do not, besides the first."""
    balanced_routing: bool = False
    """Deal tokens out to experts evenly instead of asking the router."""
    document_tokens: int = 0
    """Tokens of each document packed into a sequence, for --model.mask document; 0 makes a sequence one document."""
    out: str = ""
    """Also write the numbers to this JSON file."""
    profile: str = ""
    """Also profile each mode: traces and tables of kernel time by module and by kind go to this folder."""

    def check(self) -> None:
        for mode in self.modes:
            if mode not in BENCH_MODES:
                why = f"modes are {', '.join(BENCH_MODES)}"
                raise ConfigError(f"--modes has {mode!r}", why=why, do=did_you_mean(mode, BENCH_MODES))
        if self.steps < 1:
            raise ConfigError(f"--steps {self.steps}", why="there is nothing to measure", do="--steps 20")
        if self.warmup < 0:
            raise ConfigError(f"--warmup {self.warmup}", why="it counts steps", do="--warmup 3")
        if self.document_tokens < 0:
            raise ConfigError(f"--document-tokens {self.document_tokens}", why="it counts tokens", do="leave it out")


@dataclass(kw_only=True, slots=True)
class InspectOptions(Configurable.Config):
    """`monograph inspect`."""

    out: str = ""
    """Folder for the graph after every pass, the differences, report.json and index.html."""
    ranks: int = 0
    """Look at rank 0 of this many, none of which is started; 0 takes as many as the degrees say."""
    simulate: bool = False
    """Also compute a small copy of the step on all of them in this process, compare it with one device, and draw the
    mesh."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks {self.ranks}", why="it counts ranks", do="--ranks 256")
        if not self.out:
            raise ConfigError("--out is missing", why="the report needs a folder", do="--out inspected")


@dataclass(kw_only=True, slots=True)
class PrecompileOptions(Configurable.Config):
    """`monograph precompile`."""

    out: str = ""
    """Folder to write the artifact to; it appears when it is whole."""
    ranks: int = 0
    """Ranks that will train, none of which is started; 0 takes as many as the degrees say."""
    overwrite: bool = False
    """Replace an artifact that is there already."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks {self.ranks}", why="it counts ranks", do="--ranks 256")
        if not self.out:
            raise ConfigError("--out is missing", why="the artifact needs a folder", do="--out artifacts/llama3")


@dataclass(kw_only=True, slots=True)
class TuneOptions(Configurable.Config):
    """`monograph tune`."""

    ranks: int = 0
    """Ranks that will train, none of which is started; 0 takes as many as the degrees say."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks must be >= 0, got {self.ranks}", why="it counts ranks", do="--ranks 256")


@dataclass(kw_only=True, slots=True)
class GoodputArguments(Configurable.Config):
    """`monograph goodput`."""

    folder: str = ""
    """Folder of the run (`job.dump_folder`)."""
    json: bool = False
    """Print the numbers as JSON."""


@dataclass(kw_only=True, slots=True)
class ArtifactShowArguments(Configurable.Config):
    """`monograph artifact show`."""

    folder: str = ""
    """Folder of the artifact."""
    all: bool = False
    """Show every field and every input."""
    key_file: str = ""
    """File with the key it must be signed with; empty takes MONOGRAPH_ARTIFACT_KEY, if it is set."""


@dataclass(kw_only=True, slots=True)
class ArtifactSignArguments(Configurable.Config):
    """`monograph artifact sign`."""

    folder: str = ""
    """Folder of the artifact."""
    key_file: str = ""
    """File with the key, readable by its owner only; empty takes MONOGRAPH_ARTIFACT_KEY."""
    overwrite: bool = False
    """Replace a signature that was made with another key."""


@dataclass(kw_only=True, slots=True)
class ArtifactVerifyArguments(Configurable.Config):
    """`monograph artifact verify`."""

    folder: str = ""
    """Folder of the artifact."""
    key_file: str = ""
    """File with the key, readable by its owner only; empty takes MONOGRAPH_ARTIFACT_KEY."""


@dataclass(kw_only=True, slots=True)
class ArtifactCheckOptions(Configurable.Config):
    """`monograph artifact check`."""

    folder: str = ""
    """Folder of the artifact."""
    ranks: int = 0
    """Ranks of the run; 0 takes as many as the degrees say, and one for an open data_parallel_shard_degree."""

    def check(self) -> None:
        if self.ranks < 0:
            raise ConfigError(f"--ranks {self.ranks}", why="it counts ranks", do="--ranks 256")


@dataclass(kw_only=True, slots=True)
class PassesArguments(Configurable.Config):
    """`monograph passes`."""

    markdown: bool = False
    """Print the page docs/passes.md."""
    passes: PassesConfig = field(default_factory=PassesConfig)
    """Which passes there are: --passes.extra package.module:Class lists yours among ours."""


@dataclass(kw_only=True, slots=True)
class CheckPassArguments(Configurable.Config):
    """`monograph check-pass`."""

    reference: str = ""
    """The pass, as package.module:Class."""
    model: Names = ()
    """Recipes to try it on, with few layers and short sequences; empty takes three debug models."""


@dataclass(kw_only=True, slots=True)
class CheckModelArguments(Configurable.Config):
    """`monograph check-model`."""

    model: str = ""
    """A model class or its Config, as package.module:Class; or a recipe."""
    ranks: int = 0
    """Also verify it on this many local ranks, for each axis that its plan has."""

    def check(self) -> None:
        if self.ranks < 0 or self.ranks == 1:
            raise ConfigError(f"--ranks {self.ranks}", why="one device is compared with several", do="--ranks 2")


@dataclass(kw_only=True, slots=True)
class DataPackArguments(Configurable.Config):
    """`monograph data pack`."""

    dataset: str = ""
    """'builtin', a text/jsonl/parquet file, a folder of these, or 'hf:NAME'."""
    out: str = ""
    """Folder to write the token shards to."""
    overwrite: bool = False
    """Replace an existing folder of token shards."""
    shard_tokens: int = 1 << 28
    """Tokens after which a new file is begun."""
    text_field: str = "text"
    """Field (jsonl, streams) or column (parquet) that holds a document's text."""
    document_separator: str = ""
    """Cut text files into documents at this string; empty makes each file one document."""
    hf_subset: str = ""
    """Subset (configuration name) of an 'hf:' dataset."""
    hf_split: str = "train"
    """Split of an 'hf:' dataset."""
    hf_revision: str = ""
    """Commit or tag of an 'hf:' dataset."""
    stream_retries: int = 8
    """Attempts in a row, with growing pauses, before a failing stream ends the command."""
    tokenizer: TokenizerConfig = field(default_factory=StandardTokenizerConfig)
    """The tokenizer; a run on the shards must use the same one."""

    def check(self) -> None:
        if self.shard_tokens < 1:
            raise ConfigError(
                f"--shard_tokens {self.shard_tokens}", why="a file holds tokens", do="--shard_tokens 268435456"
            )

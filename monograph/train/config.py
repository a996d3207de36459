"""The configuration of one training run: `Trainer.Config` and the sections it nests. Loads without torch."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.execute.config import ActivationCheckpointConfig, CompileConfig
from monograph.machine.choose import AUTO, find_machine
from monograph.models.attention_kernel_config import plan_kernel
from monograph.models.model_config import ModelConfig
from monograph.parallel.config import ParallelismConfig
from monograph.passes.config import PassesConfig
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig
from monograph.train.flex_limits import check_flex_limits
from monograph.train.float8_limits import check_float8_limits
from monograph.train.lr_scheduler_config import LrSchedulerConfig, WarmupDecayConfig
from monograph.train.optimizer_config import ITEM_BYTES, AdamWConfig, OptimizerConfig
from monograph.train.pipeline_limits import check_pipeline_limits
from monograph.train.replicas.config import FaultToleranceConfig, check_replica_limits
from monograph.train.unused_settings import check_unused

Precision = Literal["float32", "bfloat16"]


@dataclass(kw_only=True, slots=True)
class JobConfig(Configurable.Config):
    """Where this run keeps what it writes."""

    dump_folder: str = "outputs"
    """Folder of the run: metrics, logs, traces and, unless moved, checkpoints."""
    description: str = ""
    """Free text, kept with the run."""

    def check(self) -> None:
        if not self.dump_folder:
            raise ConfigError(
                "job: dump_folder is empty",
                why="the run would leave its files in the folder that it is started in",
                do="--job.dump_folder outputs/NAME, or . for that folder",
            )


@dataclass(kw_only=True, slots=True)
class TrainingConfig(Configurable.Config):
    """Batch, length, precision and duration."""

    steps: int = 100
    """Optimizer updates to make."""
    seq_len: int = 2048
    """Tokens in one sequence."""
    local_batch_size: int = 1
    """Sequences one device handles at a time (one micro-batch)."""
    global_batch_size: int = -1
    """Sequences in one optimizer update over all devices; -1 means no gradient accumulation."""
    max_norm: float = 1.0
    """Clip the global gradient norm to this; 0 switches clipping off."""
    dtype: Precision = "float32"
    """The stored (master) weights, their gradients (sums of several: parallelism.reduce_dtype) and, unless
    optimizer.state_dtype says otherwise, moments."""
    compute_dtype: Precision = "bfloat16"
    """Forward and backward: weights are cast to this as each block uses them."""
    freeze: Names = ()
    """Parameters that are not trained, by name; `*` stands for any characters: `embedding.*`, `layers.0.*`."""
    gc_interval: int = 50
    """Collect Python garbage every so many steps, at the same step on every rank; 0 leaves Python's own timing."""

    def check(self) -> None:
        for name in ("steps", "seq_len", "local_batch_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it must be at least 1")
        if self.global_batch_size != -1 and self.global_batch_size < 1:
            raise ConfigError(
                f"global_batch_size is {self.global_batch_size}",
                why="it counts sequences",
                do="write a positive number, or -1 for no gradient accumulation",
            )
        if self.max_norm < 0:
            raise ConfigError(f"max_norm is {self.max_norm}", why="a norm is >= 0", do="write 0 to switch it off")
        if self.dtype == "bfloat16" and self.compute_dtype == "float32":
            raise ConfigError(
                "dtype is bfloat16 while compute_dtype is float32",
                why="weights stored in fewer bits than they are used in gain nothing",
                do="--training.dtype float32 or --training.compute_dtype bfloat16",
            )


@dataclass(kw_only=True, slots=True)
class MetricsConfig(Configurable.Config):
    """What is measured and where it goes; metrics.jsonl is always written."""

    owner: ClassVar[str] = "monograph.train.metrics:Metrics"
    log_interval: int = 10
    """Steps between lines on the terminal, whose speed is the mean since the last (every step is in metrics.jsonl)."""
    tensorboard: bool = False
    """Also write TensorBoard events (extra: tensorboard)."""
    wandb: bool = False
    """Also send to Weights & Biases (extra: wandb)."""
    page: bool = False
    """Serve the page of `monograph watch` on the machine of rank 0 while training runs (the log has its address), and
    leave it in the folder as page.html."""
    progress: Literal["auto", "bar", "lines", "off"] = "auto"
    """auto shows lines and, on a terminal, a live bar below them; lines leaves the bar out."""
    peak_flops: float = 0.0
    """The device's peak FLOP/s for MFU; 0 takes that of `machine` and leaves MFU out where it is unknown."""
    expert_load_limit: float = 3.0
    """Warn when the busiest expert of a layer keeps more than this many times the mean load (at most 3/4 of the worst
    case, experts / top_k); 0 never warns."""
    expert_load_patience: int = 50
    """Steps in a row that a layer must be above the limit."""
    rank_times_interval: int = 1000
    """Every so many steps, measure each rank's own work apart from its waiting for others; 0 never does. Such a step
    runs op by op: where that does not fit into memory beside the step's CUDA graphs, nothing is measured."""
    slow_rank_limit: float = 1.5
    """Warn of ranks whose own work takes longer than this many times the median."""

    def check(self) -> None:
        for name in ("log_interval", "expert_load_patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it counts steps", do="write 1 or more")
        if self.rank_times_interval < 0:
            raise ConfigError(
                f"rank_times_interval is {self.rank_times_interval}", why="it counts steps", do="write 0 or more"
            )
        check_range(self, "slow_rank_limit", 1.01, 1e6, why="the median itself is 1")
        check_range(self, "peak_flops", 1e6, 1e24, zero="to take that of the machine", why="it is in FLOP/s")
        if self.expert_load_limit < 0:
            raise ConfigError(
                f"expert_load_limit is {self.expert_load_limit}",
                why="it is a multiple of the mean load",
                do="write a number above 1, or 0 to switch the warning off",
            )


@dataclass(kw_only=True, slots=True)
class ProfilerConfig(Configurable.Config):
    """Windows of steps recorded as Chrome traces."""

    owner: ClassVar[str] = "monograph.train.profiler:Profiler"
    start: int = 0
    """First step to record; 0 records nothing."""
    steps: int = 3
    """Length of a window."""
    every: int = 0
    """Start a new window every so many steps; 0 records one window."""

    def check(self) -> None:
        for name, least in (("start", 0), ("steps", 1), ("every", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", why=f"it must be at least {least}")
        if self.every and self.every < self.steps:
            raise ConfigError(
                f"every is {self.every} but a window has {self.steps} steps",
                why="windows would overlap",
                do=f"--profiler.every {self.steps}",
            )


@dataclass(kw_only=True, slots=True)
class ValidatorConfig(Configurable.Config):
    """Loss on data held out from training."""

    owner: ClassVar[str] = "monograph.train.validate:Validator"
    interval: int = 0
    """Steps between validations; 0 switches them off."""
    samples: int = 64
    """Sequences of each set in one validation, or all where there are fewer: the same ones whatever the seed, the batch
    and the mesh are."""

    def check(self) -> None:
        for name, least in (("interval", 0), ("samples", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", why=f"it must be at least {least}")


@dataclass(kw_only=True, slots=True)
class DebugConfig(Configurable.Config):
    """Seeds and reproducibility."""

    seed: int = 42
    """Decides initial weights and the order of the data."""
    deterministic: bool = False
    """Use only deterministic kernels, so that two runs give the same bits."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU when there is one."""
    share_gpus: bool = False
    """Let several ranks have one GPU, over gloo and host memory: slow, for trying a mesh out. Otherwise more ranks than
    GPUs are refused."""
    log_level: Literal["debug", "info", "warning"] = "info"
    """The least important messages that are logged."""
    replay_every: int = 0
    """Every so many steps, all ranks compute one micro-batch twice and compare bits: a rank with faulty hardware is
    named; 0 never does."""

    def check(self) -> None:
        if self.replay_every < 0:
            raise ConfigError(f"replay_every is {self.replay_every}", why="it counts steps", do="write 0 or more")
        if self.replay_every and not self.deterministic:
            raise ConfigError(
                f"replay_every is {self.replay_every} while deterministic is false",
                why="kernels that add up in any order give other bits on healthy hardware, too",
                do="--debug.deterministic true, or --debug.replay_every 0",
            )


@dataclass(kw_only=True, slots=True)
class TrainerConfig(Configurable.Config):
    """One experiment, whole. A recipe is a function that returns one of these."""

    owner: ClassVar[str] = "monograph.train.trainer:Trainer"
    model: ModelConfig
    """The model."""
    machine: str = AUTO
    """What the devices and links can do, for estimates, passes that plan with them, and MFU: a name such as h100 or
    b200, the path of a .json file with the same fields, or auto, the device of the run."""
    job: JobConfig = field(default_factory=JobConfig)
    """Where the run lives."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """Batch, length, precision, duration."""
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    """How the work is spread over devices."""
    compile: CompileConfig = field(default_factory=CompileConfig)
    """How the step is run."""
    passes: PassesConfig = field(default_factory=PassesConfig)
    """What graph mode does to the captured step."""
    activation_checkpoint: ActivationCheckpointConfig = field(default_factory=ActivationCheckpointConfig)
    """What forward saves for backward, and what is recomputed."""
    optimizer: OptimizerConfig = field(default_factory=AdamWConfig)
    """The update rule."""
    lr_scheduler: LrSchedulerConfig = field(default_factory=WarmupDecayConfig)
    """The learning rate over time."""
    dataloader: DataLoaderConfig = field(default_factory=DataLoaderConfig)
    """What is read, and in which order."""
    tokenizer: TokenizerConfig = field(default_factory=StandardTokenizerConfig)
    """How text becomes numbers."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """Saving and resuming."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """What is reported."""
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)
    """Chrome traces of chosen steps."""
    validator: ValidatorConfig = field(default_factory=ValidatorConfig)
    """Loss on held-out data."""
    fault_tolerance: FaultToleranceConfig = field(default_factory=FaultToleranceConfig)
    """Replicas that come and go while training goes on."""
    debug: DebugConfig = field(default_factory=DebugConfig)
    """Seeds and reproducibility."""

    def check(self) -> None:
        check_unused(self)
        if self.machine != AUTO:
            find_machine(self.machine)
        if self.compile.mode == "layer" and self.parallelism.fsdp == "graph":
            raise ConfigError(
                "compile.mode is layer and parallelism.fsdp is graph",
                why="compiled blocks need their parameters in place, which is what fsdp2 does",
                do="--parallelism.fsdp auto",
            )
        if "optimizer" in self.compile.components and not self.optimizer.has_compiled_form:
            raise ConfigError(
                f"compile.components has optimizer and it is {type(self.optimizer).__qualname__}",
                why="it has no compiled form",
                do="leave optimizer out of --compile.components",
            )
        length = "lr_scheduler.total_steps" if self.lr_scheduler.total_steps else "training.steps"
        self.lr_scheduler.check_length(self.lr_scheduler.total_steps or self.training.steps, length)
        self.check_graph_mode()
        if self.debug.replay_every and not self.has_explicit_collectives:
            raise ConfigError(
                f"debug.replay_every is {self.debug.replay_every} while compile.mode is {self.compile.mode} and "
                f"parallelism.fsdp is {self.parallelism.fsdp}",
                why="FSDP2 communicates inside of hooks, where what a rank sends cannot be compared",
                do="--compile.mode graph or eager, with --parallelism.fsdp auto",
            )
        self.optimizer.check_stored(self.training.dtype)
        check_pipeline_limits(self)
        check_replica_limits(self)
        check_flex_limits(self)
        check_float8_limits(self)
        self.activation_checkpoint.check_run(self.compile, self.passes.off)
        self.compile.expert_overlap.check_run(
            mode=self.compile.mode,
            fsdp=self.plan_fsdp(),
            has_experts=self.model.find_moe() is not None,
            sequences=self.training.local_batch_size,
            tokens=self.training.seq_len,
            tensor_ranks=self.parallelism.tensor_parallel_degree,
            context_ranks=self.parallelism.context_parallel_degree,
            expert_ranks=self.parallelism.expert_parallel_degree,
            off=self.passes.off,
        )
        seq_len, limit = self.training.seq_len, self.model.find_sequence_limit()
        if limit is not None and seq_len > limit.tokens:
            raise ConfigError(
                f"training.seq_len is {seq_len} but {limit.field} is {limit.tokens}",
                why="positions beyond it do not exist",
                do=f"--training.seq_len {limit.tokens} or --{limit.field} {seq_len}",
            )
        global_batch, local = self.training.global_batch_size, self.training.local_batch_size
        if global_batch != -1 and global_batch % local:
            nearest = max(local, round(global_batch / local) * local)
            raise ConfigError(
                f"training.global_batch_size {global_batch} is not a multiple of training.local_batch_size {local}",
                why="an update is a whole number of micro-batches",
                do=f"--training.global_batch_size {nearest}",
            )

    @property
    def has_explicit_collectives(self) -> bool:
        """Whether every collective of a step is addressed by a logical group, where it can be observed."""
        return self.compile.mode != "layer" and self.plan_fsdp() == "graph"

    def plan_fsdp(self) -> Literal["fsdp2", "graph"]:
        """Who shards. Eager mode computes as the graph does unless FSDP2 is asked for; blocks that are compiled one by
        one need their parameters in place, and the stages of a pipeline never have them there."""
        asked = self.parallelism.fsdp
        is_layer = self.compile.mode == "layer" and self.parallelism.pipeline_parallel_degree == 1
        return ("fsdp2" if is_layer else "graph") if asked == "auto" else asked

    def needs_evaluation(self) -> bool:
        """Whether the run computes losses without gradients besides its steps."""
        loader = self.dataloader
        return self.validator.interval > 0 or (loader.has_mixture() and loader.source_loss_interval > 0)

    def plan_optimizer(self) -> OptimizerConfig:
        """The optimizer with everything decided that it leaves to `compile.numerics`."""
        return self.optimizer.plan(self.compile.numerics)

    def plan_model(self) -> ModelConfig:
        """The model that the run builds: for its length, with everything decided that it leaves to `compile`."""
        is_compiled = self.compile.mode == "layer" and self.compile.backend == "inductor"
        model = self.model.for_length(self.training.seq_len)
        return plan_kernel(model, may_vary=is_compiled or self.compile.numerics != "exact")

    def find_state_ratio(self) -> float:
        """Bytes of the optimizer's state for each byte of a trained parameter."""
        stored = self.training.dtype
        return self.plan_optimizer().count_state_bytes(stored) / ITEM_BYTES[stored]

    def check_graph_mode(self) -> None:
        """The whole step as one graph brings its own sharding; what it cannot do yet is refused."""
        if self.compile.mode != "graph":
            return
        if self.parallelism.fsdp == "fsdp2":
            raise ConfigError(
                "compile.mode is graph and parallelism.fsdp is fsdp2",
                why="FSDP2 gathers parameters in hooks, which a graph cannot hold",
                do="--parallelism.fsdp auto, or --compile.mode eager",
            )
        self.passes.check_asked(self.compile.numerics)
        if "narrow_gradients" in self.passes.on and not self.plan_optimizer().is_single_pass:
            raise ConfigError(
                f"passes.on has narrow_gradients and {self.optimizer.describe()} is not a single-pass optimizer",
                why="its update needs gradients in the dtype of the parameters",
                do="--optimizer.implementation single_pass (AdamW), or leave narrow_gradients out of passes.on",
            )

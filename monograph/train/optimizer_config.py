"""Settings of optimizers: what every one has, and AdamW's. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from monograph.config.configurable import Configurable
from monograph.config.ranges import FP32_MAX, FP32_TINY, check_range
from monograph.errors import ConfigError

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(kw_only=True, slots=True)
class OptimizerConfig(Configurable.Config):
    """What the trainer knows of every optimizer; your own is one flag away: --optimizer package.module:Class."""

    owner: ClassVar[str] = "monograph.train.optimizer:Optimizer"
    is_base: ClassVar[bool] = True
    has_compiled_form: ClassVar[bool] = False
    """Whether its component defines `compile`, so that compile.components may have optimizer."""
    lr: float = 3e-4
    """Peak learning rate."""

    @property
    def is_single_pass(self) -> bool:
        """Whether it reads narrow gradients and writes the cast copies of weights; passes that need that ask here."""
        return False

    @property
    def has_remainders(self) -> bool:
        """Whether it keeps the 16 bits that bf16 parameters lack of their fp32 masters."""
        return False

    @property
    def draws_random(self) -> bool:
        """Whether its component takes `seed` and `row_starts`: random bits by the position of an element."""
        return False

    def plan(self, numerics: str) -> Self:
        """This config with everything decided that it leaves to `compile.numerics`."""
        return self

    def check_stored(self, stored: str) -> None:
        """Refuse parameters stored in a dtype that it cannot update."""

    def for_fp32(self) -> Self:
        """This config for weights in fp32, which `verify` compares."""
        return self

    def find_state_dtype(self, stored: str) -> str:
        """The dtype of its state, for parameters stored in `stored`."""
        return stored

    def count_state_bytes(self, stored: str) -> int:
        """Bytes of state for each element of a parameter, for estimates: two moments unless a config says otherwise."""
        return 2 * ITEM_BYTES[self.find_state_dtype(stored)] + 2 * self.has_remainders

    def describe(self) -> str:
        """Its class, for messages."""
        return f"optimizer {type(self).__qualname__}"

    def check(self) -> None:
        check_range(self, "lr", FP32_TINY, 1e30, why="an update moves every weight by about lr")


@dataclass(kw_only=True, slots=True)
class AdamWConfig(OptimizerConfig):
    """AdamW; weight decay leaves norms and biases alone."""

    owner: ClassVar[str] = "monograph.train.adamw:AdamW"
    has_compiled_form: ClassVar[bool] = True
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.95
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled weight decay of matrices; vectors and what a module names in `no_decay` (biases of experts) stay."""
    implementation: Literal["auto", "fused", "foreach", "for_loop", "single_pass"] = "auto"
    """Which of torch's loops to use, or single_pass: a custom kernel that reads and writes everything once. auto:
    single_pass with compile.numerics fast or float8, a state_dtype or store_param_remainders, else torch's fused loop
    where there is one."""
    state_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of both moments. auto: training.dtype, or float32 with store_param_remainders. bfloat16: rounded stochastically
    by seed, update and position of an element, so that any mesh and any resume rounds alike. float32 and bfloat16 need
    the single_pass implementation."""
    store_param_remainders: bool = False
    """Keep the 16 bits that a bf16 weight lacks of its fp32 master beside it: updates are those of fp32 weights, which
    take no memory of their own. For training.dtype bfloat16, by the single_pass implementation."""

    @property
    def is_single_pass(self) -> bool:
        """Whether one kernel reads and writes everything once."""
        return self.implementation == "single_pass"

    @property
    def has_remainders(self) -> bool:
        """Whether bf16 weights have fp32 masters."""
        return self.store_param_remainders

    @property
    def draws_random(self) -> bool:
        """Whether moments are rounded stochastically."""
        return self.state_dtype == "bfloat16"

    def plan(self, numerics: str) -> Self:
        """`auto` decided: single_pass with fast numerics or what only it can do, else one of torch's loops."""
        if self.implementation == "auto" and (numerics != "exact" or self.needs_single_pass):
            return self.replace(implementation="single_pass")
        return self

    @property
    def needs_single_pass(self) -> bool:
        """Whether anything is asked for that torch's loops cannot do."""
        return self.state_dtype != "auto" or self.store_param_remainders

    def find_state_dtype(self, stored: str) -> str:
        """The dtype of its moments, for parameters stored in `stored`."""
        if self.state_dtype == "auto":
            return "float32" if self.store_param_remainders else stored
        return self.state_dtype

    def check_stored(self, stored: str) -> None:
        """Remainders are for bf16 parameters."""
        if self.store_param_remainders and stored != "bfloat16":
            raise ConfigError(
                f"optimizer.store_param_remainders is true and training.dtype is {stored}",
                why="the remainders are what bf16 weights lack of their fp32 masters; fp32 weights lack nothing",
                do="--training.dtype bfloat16, or --optimizer.store_param_remainders false",
            )

    def for_fp32(self) -> Self:
        """Without remainders, which fp32 weights do not need, and with moments in fp32: bf16 ones are rounded
        stochastically, and the last bit of a gradient may decide which way."""
        state_dtype = "float32" if self.state_dtype == "bfloat16" else self.state_dtype
        return self.replace(store_param_remainders=False, state_dtype=state_dtype)

    def describe(self) -> str:
        """Which of its loops it is, and what it keeps its moments in."""
        moments = "" if self.state_dtype == "auto" else f", optimizer.state_dtype {self.state_dtype}"
        masters = ", optimizer.store_param_remainders" if self.store_param_remainders else ""
        return f"optimizer.implementation {self.implementation}{moments}{masters}"

    def check(self) -> None:
        if self.needs_single_pass and self.implementation not in ("auto", "single_pass"):
            raise ConfigError(
                f"implementation is {self.implementation} with state_dtype {self.state_dtype} and "
                f"store_param_remainders {str(self.store_param_remainders).lower()}",
                why="torch's loops keep moments in the dtype of the parameters, and nothing else of them",
                do="--optimizer.implementation single_pass (or auto), or --optimizer.state_dtype auto "
                "--optimizer.store_param_remainders false",
            )
        check_range(self, "lr", FP32_TINY, 1e30, why="AdamW moves every weight by about lr in one step")
        check_range(self, "eps", FP32_TINY, FP32_MAX, why="AdamW divides by it in float32 where a gradient is 0")
        if self.weight_decay < 0 or self.lr * self.weight_decay > 1:
            raise ConfigError(
                f"weight_decay is {self.weight_decay} and lr is {self.lr}",
                why="a step multiplies weights by 1 - lr * weight_decay, which must lie in [0, 1]",
                do=f"write a weight_decay between 0 and {1 / self.lr:.3g}",
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it must lie in [0, 1)")

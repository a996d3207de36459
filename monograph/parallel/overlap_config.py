"""Experts' exchanges under compute: which modules are run chunk by chunk, and how. Loads without torch."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError

BLOCK_PARTS, EXPERT_PARTS = 2, 3
"""Parts of the path of a block, and of the experts in it."""


@dataclass(kw_only=True, slots=True)
class ExpertOverlapConfig(Configurable.Config):
    """Run chosen modules chunk by chunk, so that one chunk's all_to_all overlaps with another chunk's compute."""

    strategy: Literal["off", "trace", "graph"] = "off"
    """trace: modules are called once per chunk, in eager mode too; graph: a pass cuts the captured step."""
    chunk_dim: Literal["batch", "seq"] = "batch"
    """What is cut: the sequences of a micro-batch, or the tokens of every sequence."""
    modules: str = "layers.*"
    """The modules: `layers.*` for whole blocks, `layers.*.moe` for the experts in them, or one of either."""
    num_chunks: int = 2
    """Parts a micro-batch is cut into."""
    grad_sum: Literal["before_reduce", "after_reduce"] = "before_reduce"
    """When chunks' gradients are added: before one collective between ranks, or after one collective for each chunk."""

    @property
    def is_on(self) -> bool:
        """Whether anything is cut."""
        return self.strategy != "off"

    def selects(self, path: str) -> bool:
        """Whether a module is cut, by its path: part by part."""
        wanted, given = self.modules.split("."), path.split(".")
        return len(wanted) == len(given) and all(map(fnmatchcase, given, wanted))

    @property
    def has_blocks(self) -> bool:
        """Whether whole blocks are cut, attention included."""
        return len(self.modules.split(".")) == BLOCK_PARTS

    def check(self) -> None:
        parts = self.modules.split(".")
        is_experts = len(parts) == EXPERT_PARTS and fnmatchcase("moe", parts[-1])
        if parts[0] != "layers" or not all(parts) or not (len(parts) == BLOCK_PARTS or is_experts):
            raise ConfigError(
                f"modules is {self.modules!r}",
                why="only blocks and the experts in them can be run chunk by chunk",
                do="write `layers.*` for all blocks, `layers.*.moe` for all experts, or `layers.3` for one of them",
            )
        if self.num_chunks < 2:
            raise ConfigError(
                f"num_chunks is {self.num_chunks}",
                why="with fewer than two chunks there is nothing to overlap",
                do="write 2 or more, or --compile.expert_overlap.strategy off",
            )
        if self.strategy == "graph" and self.chunk_dim == "seq" and self.has_blocks:
            raise ConfigError(
                f"strategy is graph, chunk_dim is seq and modules is {self.modules!r}, which covers attention",
                why="a chunk sees the keys of those before it: chunks are not alike, and no pass can make them of one",
                do="--compile.expert_overlap.strategy trace, or --compile.expert_overlap.modules 'layers.*.moe'",
            )

    def check_run(
        self,
        *,
        mode: str,
        fsdp: str,
        has_experts: bool,
        sequences: int,
        tokens: int,
        tensor_ranks: int,
        context_ranks: int,
        expert_ranks: int,
        off: tuple[str, ...],
    ) -> None:
        """Refuse what the rest of a run does not allow; a micro-batch has `sequences` x `tokens`."""
        if not self.is_on:
            return
        if not has_experts:
            raise ConfigError(
                f"compile.expert_overlap.strategy is {self.strategy} and the model has no experts",
                why="there are no routed tokens to exchange",
                do="--compile.expert_overlap.strategy off",
            )
        if mode == "eager" and fsdp != "graph":
            raise ConfigError(
                f"compile.expert_overlap.strategy is {self.strategy} and parallelism.fsdp is {fsdp}",
                why="chunks share gathered parameters, which FSDP2's hooks cannot",
                do="--parallelism.fsdp auto, or --compile.mode graph",
            )
        if mode == "graph" and "overlap_experts" not in off and expert_ranks == 1:
            raise ConfigError(
                f"compile.expert_overlap.strategy is {self.strategy} and parallelism.expert_parallel_degree is 1",
                why="all experts are on every rank: there is no all_to_all to overlap",
                do="--passes.off overlap_experts to have chunks alone, or spread the experts over more ranks",
            )
        if self.strategy == "graph" and "chunk_experts" in off:
            raise ConfigError(
                "passes.off has chunk_experts and compile.expert_overlap.strategy is graph",
                why="the strategy asks for the pass",
                do="take chunk_experts out of passes.off, or --compile.expert_overlap.strategy off",
            )
        if self.chunk_dim == "seq" and self.has_blocks and tensor_ranks * context_ranks > 1:
            axis = "tensor" if tensor_ranks > 1 else "context"
            raise ConfigError(
                f"compile.expert_overlap cuts sequences of whole blocks, and parallelism.{axis}_parallel_degree is "
                f"{tensor_ranks if tensor_ranks > 1 else context_ranks}",
                why="a rank has a part of every sequence, and parts of it do not follow each other on all ranks",
                do="--compile.expert_overlap.modules 'layers.*.moe', or --compile.expert_overlap.chunk_dim batch",
            )
        self.check_extent(sequences=sequences, tokens=tokens, ranks=tensor_ranks * context_ranks)

    def check_extent(self, *, sequences: int, tokens: int, ranks: int) -> None:
        """Refuse a micro-batch of `sequences` x `tokens` that cannot be cut into equal parts."""
        if self.chunk_dim == "batch":
            extent, name = sequences, "training.local_batch_size"
        else:
            extent, name = tokens // ranks, "training.seq_len"
        per_chunk = extent // self.num_chunks
        least = 2 if self.strategy == "graph" else 1
        if extent % self.num_chunks == 0 and per_chunk >= least:
            return
        shared = f" over {ranks} ranks" if self.chunk_dim == "seq" and ranks > 1 else ""
        unit = self.num_chunks * (ranks if self.chunk_dim == "seq" else 1)
        whole = tokens if self.chunk_dim == "seq" else sequences
        fits = max(unit * least, whole // unit * unit)
        why = f"{extent} cannot be cut into {self.num_chunks} equal parts"
        if extent % self.num_chunks == 0:
            why = f"a chunk would have {per_chunk}, and a step of that size is captured differently"
        raise ConfigError(
            f"compile.expert_overlap cuts {name} = {whole}{shared} into {self.num_chunks} chunks",
            why=why,
            do=f"--{name} {fits}, or another --compile.expert_overlap.num_chunks",
        )

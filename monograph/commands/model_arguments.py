"""The arguments of `monograph generate` and `monograph evaluate`. Loads without torch, so mistakes show at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.system.foreign_json import UnusableFile, read_text
from monograph.system.foreign_text import split_lines
from monograph.train.checkpoint.hf_assets import TOKENIZER_NAME


@dataclass(kw_only=True, slots=True)
class ModelArguments(Configurable.Config):
    """Commands that use a trained model."""

    folder: str = ""
    """The folder of a run, a checkpoint, an import, a Hugging Face folder, or organization/name of one on the hub."""
    tokenizer: str = "auto"
    """Folder with another tokenizer.json; auto takes the model's own."""
    allow_special: bool = False
    """Read special tokens from texts and prompts, as "<|im_start|>" in a prompt for a chat model. Without it they are
    plain text, unless the model's run was trained with --tokenizer.allow_special."""
    dtype: Literal["auto", "stored", "float32", "bfloat16", "float16"] = "auto"
    """Type to compute in. stored: that of the weights. auto: on a GPU, what the run that made them computed in; else
    stored."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto takes a GPU when there is one."""
    batch_size: int = 8
    """Texts that are computed together."""

    def check(self) -> None:
        if self.tokenizer != "auto" and not (Path(self.tokenizer) / TOKENIZER_NAME).is_file():
            raise ConfigError(
                f"tokenizer is {self.tokenizer}", why=f"it holds no {TOKENIZER_NAME}", do="--tokenizer auto"
            )
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be >= 1, got {self.batch_size}", do="--batch_size 8")


@dataclass(kw_only=True, slots=True)
class GenerateArguments(ModelArguments):
    """`monograph generate`."""

    prompt: str = ""
    """The text to continue."""
    prompt_file: str = ""
    """File with a prompt in every line, in place of `prompt`."""
    max_new_tokens: int = 128
    """Tokens to write after a prompt, unless the model ends the text before."""
    temperature: float = 0.0
    """0 is greedy decoding; 1 draws from the model's distribution, more flattens it."""
    top_p: float = 1.0
    """Nucleus sampling: draw from the fewest tokens with this probability mass (needs a temperature)."""
    repetition_penalty: float = 0.0
    """Make tokens of the text so far less likely by this factor; 0 takes that of generation_config.json, or 1."""
    seed: int = 0
    """Decides what is drawn."""
    cache: bool = True
    """Keep keys and values of the text so far; without it, every token reads the whole text again."""
    json: bool = False
    """Print a JSON object a line: prompt, text, tokens, whether the model ended it."""

    def check(self) -> None:
        super(GenerateArguments, self).check()
        if bool(self.prompt) == bool(self.prompt_file):
            raise ConfigError(
                "both --prompt and --prompt_file are given" if self.prompt else "--prompt is missing",
                why="the model continues a text",
                do='--prompt "Once upon a time", or --prompt_file FILE',
            )
        if self.prompt.encode(errors="ignore").decode() != self.prompt:
            raise ConfigError(
                f"prompt is {self.prompt!a}",
                why="it is not UTF-8",
                do="write it to a file, for --prompt_file FILE",
            )
        if self.prompt_file:
            self.prompts()
        if self.max_new_tokens < 1:
            raise ConfigError(f"max_new_tokens must be >= 1, got {self.max_new_tokens}", do="--max_new_tokens 128")
        check_range(self, "temperature", 0, 100, why="0 is greedy decoding")
        check_range(self, "top_p", 1e-6, 1, why="it is a probability mass")
        check_range(
            self,
            "repetition_penalty",
            1e-2,
            100,
            zero="for the model's own",
            why="logits of repeated tokens are divided by it",
        )
        if self.top_p < 1 and self.temperature == 0:
            raise ConfigError(
                f"top_p is {self.top_p} while temperature is 0",
                why="temperature 0 is greedy decoding, which does not sample",
                do=f"--temperature 1 --top_p {self.top_p}",
            )

    def prompts(self) -> list[str]:
        """The prompts, in order; empty lines of a file are none."""
        if not self.prompt_file:
            return [self.prompt]
        try:
            lines = split_lines(read_text(Path(self.prompt_file)))
        except (OSError, UnusableFile) as error:
            raise ConfigError(
                f"prompt_file is {self.prompt_file}",
                why=error.why if isinstance(error, UnusableFile) else f"it cannot be read: {error.strerror or error}",
                do="write one prompt a line, in UTF-8",
            ) from None
        found = [line for line in lines if line.strip()]
        if not found:
            raise ConfigError(
                f"prompt_file is {self.prompt_file}", why="it has no prompt", do="write one prompt a line, in UTF-8"
            )
        return found


@dataclass(kw_only=True, slots=True)
class EvaluateArguments(ModelArguments):
    """`monograph evaluate`."""

    data: tuple[str, ...] = ()
    """Texts to measure perplexity on: files or folders (text, jsonl, parquet); each is a set, NAME=PATH names it."""
    tasks: Names = ()
    """Tasks of lm-eval to run (extra: eval)."""
    task_folder: str = ""
    """Folder with tasks of your own, as lm-eval describes them."""
    limit: int = 0
    """Use only so many documents of a set, and examples of a task; 0 uses all."""
    num_fewshot: int = -1
    """Solved examples before each question of a task; -1 takes what the task says."""
    seq_len: int = 0
    """Tokens that are read at once; 0 takes 2048, or what the model was made for if that is less."""
    stride: int = 0
    """Tokens that are scored at a time: with less than seq_len, more of the text before is seen; 0 takes seq_len."""
    text_field: str = "text"
    """Field (jsonl) or column (parquet) that holds a document's text."""
    document_separator: str = ""
    """Cut text files into documents at this string; empty makes each file one document."""
    json: bool = False
    """Print the results as one JSON object."""

    def check(self) -> None:
        super(EvaluateArguments, self).check()
        if not self.data and not self.tasks:
            raise ConfigError(
                "there is nothing to evaluate on", why="neither --data nor --tasks is given", do="--data texts.jsonl"
            )
        for path in self.sets().values():
            if not Path(path).exists():
                raise ConfigError(
                    f"--data {path}: no such file or folder", why="it is a text, jsonl or parquet file, or a folder"
                )
        if self.task_folder and not Path(self.task_folder).is_dir():
            raise ConfigError(f"--task_folder {self.task_folder}: no such folder")
        for field, least in (("limit", 0), ("seq_len", 0), ("stride", 0), ("num_fewshot", -1)):
            if getattr(self, field) < least:
                raise ConfigError(f"{field} must be >= {least}, got {getattr(self, field)}")
        if self.seq_len and self.stride > self.seq_len:
            raise ConfigError(
                f"stride is {self.stride} and seq_len is {self.seq_len}",
                why="tokens between two windows would not be scored",
                do=f"--stride {self.seq_len}",
            )
        for field in ("task_folder", "num_fewshot"):
            if getattr(self, field) not in ("", -1) and not self.tasks:
                raise ConfigError(f"{field} is {getattr(self, field)} while there are no tasks", do="--tasks NAME")

    def sets(self) -> dict[str, str]:
        """Name of a set -> its file or folder."""
        found: dict[str, str] = {}
        for word in self.data:
            name, equals, path = word.partition("=")
            if not equals or Path(word).exists():
                name, path = Path(word).name, word
            if name in found:
                raise ConfigError(f"--data has two sets called {name}", do=f"--data {name}={found[name]} other={path}")
            found[name] = path
        return found

"""`monograph evaluate FOLDER --data SET ...`: perplexity of sets of texts, and tasks of lm-eval."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from monograph import strict_json
from monograph.commands.data_flags import flags_without_section
from monograph.commands.model_arguments import EvaluateArguments
from monograph.commands.model_checks import find_length
from monograph.commands.open_model import find_source, load, memory_of, suggest_fewer
from monograph.errors import DataError
from monograph.generate.lm_eval_model import run_tasks
from monograph.generate.load import LoadedModel
from monograph.generate.perplexity import Perplexity, measure
from monograph.log import set_up_log
from monograph.plurals import counted
from monograph.system.console import print_plain
from monograph.train.data.encode import tokenize
from monograph.train.data.files import open_files


def evaluate_command(arguments: EvaluateArguments) -> int:
    """Print the perplexity of every set, then the scores of every task."""
    set_up_log()
    source = find_source(arguments)
    seq_len = find_length(arguments, source.model)
    loaded = load(arguments, source, length=seq_len)
    with memory_of(loaded, do=suggest_fewer(arguments)):
        with flags_without_section():
            sets = {name: measure_set(loaded, path, arguments, seq_len) for name, path in arguments.sets().items()}
        tasks: dict[str, dict[str, Any]] = {}
        if arguments.tasks:
            tasks = run_tasks(
                loaded,
                arguments.tasks,
                folder=arguments.task_folder,
                limit=arguments.limit,
                num_fewshot=arguments.num_fewshot,
                batch_size=arguments.batch_size,
                max_length=seq_len,
            )
    show(sets, tasks, as_json=arguments.json)
    return 0


def measure_set(loaded: LoadedModel, path: str, arguments: EvaluateArguments, seq_len: int) -> Perplexity:
    """The perplexity of one set."""
    found = measure(
        loaded.model,
        islice(read_documents(loaded, path, arguments), arguments.limit or None),
        device=loaded.device,
        seq_len=seq_len,
        stride=min(arguments.stride or seq_len, seq_len),
        batch_size=arguments.batch_size,
    )
    if not found.tokens:
        raise DataError(f"{path} has no text to predict", why="every document of it is empty")
    return found


def read_documents(loaded: LoadedModel, path: str, arguments: EvaluateArguments) -> Iterator[tuple[np.ndarray, int]]:
    """The documents of a file or folder that training would have: with bos and eos, without empty ones; and their
    bytes."""
    source = open_files(Path(path), text_field=arguments.text_field, separator=arguments.document_separator)
    for document in source.read():
        for tokens, _ in tokenize([document], loaded.tokenizer):
            yield tokens, len(document.text.encode())


def show(sets: dict[str, Perplexity], tasks: dict[str, dict[str, Any]], *, as_json: bool) -> None:
    """A table for people, one JSON object for programs."""
    if as_json:
        measured = {
            name: {
                "documents": each.documents,
                "tokens": each.tokens,
                "loss": each.loss,
                "perplexity": each.perplexity,
                "bits_per_byte": each.bits_per_byte,
            }
            for name, each in sets.items()
        }
        print_plain(strict_json.dump({"sets": measured, "tasks": tasks}, indent=1))
        return
    for name, each in sets.items():
        print_plain(
            f"{name}: perplexity {each.perplexity:.4f}, loss {each.loss:.4f}, {each.bits_per_byte:.4f} bits per byte, "
            f"{counted(each.tokens, 'token')} of {counted(each.documents, 'document')}"
        )
    for name, scores in tasks.items():
        print_plain(f"{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in scores.items()))

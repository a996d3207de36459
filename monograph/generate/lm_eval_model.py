"""lm-eval's model interface around a loaded model, so that its tasks score what was trained (extra: eval)."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from monograph.errors import ConfigError
from monograph.generate.load import LoadedModel
from monograph.generate.loop import Generation, generate
from monograph.generate.perplexity import check_loss, cut_windows
from monograph.generate.sampling import Sampling
from monograph.plurals import counted

USUAL_NEW_TOKENS = 256
"""What a task gets that does not say how long its answers may be."""
TOKENS_WITHOUT_TEXT = 8
"""How many of the newest tokens may add no character to a text in `until`: parts of characters, special tokens."""


def run_tasks(
    loaded: LoadedModel,
    tasks: Sequence[str],
    *,
    folder: str = "",
    limit: int = 0,
    num_fewshot: int = -1,
    batch_size: int = 8,
    max_length: int,
) -> dict[str, dict[str, float]]:
    """The scores of tasks, by task and metric; `folder` holds descriptions of further tasks."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=folder, include_defaults=False) if folder else None
    if manager is None or not set(tasks) <= set(manager.all_tasks):  # reading all of lm-eval's own takes seconds
        manager = TaskManager(include_path=folder or None)
    unknown = [task for task in tasks if task not in manager.all_tasks]
    if unknown:
        raise ConfigError(
            f"lm-eval has no task {', '.join(unknown)}",
            why=f"it knows {counted(len(manager.all_tasks), 'task')}" + (f", with those in {folder}" if folder else ""),
            do="lm-eval ls tasks shows them; --task_folder FOLDER adds your own",
        )
    found = simple_evaluate(
        model=build_adapter(loaded, batch_size=batch_size, max_length=max_length),
        tasks=list(tasks),
        task_manager=manager,
        num_fewshot=None if num_fewshot < 0 else num_fewshot,
        limit=limit or None,
        bootstrap_iters=0,
    )
    return {name: read_scores(scores) for name, scores in found["results"].items()}


def read_scores(scores: dict[str, Any]) -> dict[str, float]:
    """The metrics of a task without their filters and errors: `acc`, `exact_match`."""
    plain = {key: value for key, value in scores.items() if isinstance(value, (int, float)) and "_stderr" not in key}
    return {key.removesuffix(",none"): float(value) for key, value in plain.items()}


def build_adapter(loaded: LoadedModel, *, batch_size: int, max_length: int) -> Any:
    """An object of lm-eval's model class."""
    from lm_eval.api.model import TemplateLM

    class LmEvalAdapter(TemplateLM):
        """Requests of tasks as calls of `ModelScores`."""

        scores = ModelScores(loaded, batch_size=batch_size, max_length=max_length)

        @property
        def eot_token_id(self) -> int:
            return loaded.tokenizer.eos_id

        @property
        def prefix_token_id(self) -> int:
            bos = loaded.tokenizer.bos_id
            return loaded.tokenizer.eos_id if bos is None else bos

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
            return self.scores.encode(string, add_special_tokens)

        def _loglikelihood_tokens(self, requests: list[Any], **_: Any) -> list[tuple[float, bool]]:
            return self.scores.score([(context, rest) for _, context, rest in requests])

        def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
            return self.scores.score_texts([each.args[0] for each in requests], self.prefix_token_id)

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return self.scores.write([each.args for each in requests])

    return LmEvalAdapter()


class ModelScores:
    """What tasks ask of a model, in our terms."""

    def __init__(self, loaded: LoadedModel, *, batch_size: int, max_length: int) -> None:
        self.loaded, self.batch_size, self.max_length = loaded, batch_size, max_length

    def encode(self, text: str, add_special_tokens: bool | None) -> list[int]:
        """Ids of a text; bos as in training, unless the caller decides or the text has it already."""
        ids: list[int] = self.loaded.tokenizer.encode(text).tolist()
        framed = self.loaded.encode(text)
        adds_bos = len(framed) > len(ids) and ids[:1] != framed[:1]
        return framed if adds_bos and add_special_tokens in (None, True) else ids

    @torch.no_grad()
    def score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """The log likelihood of each continuation of a context, and whether greedy decoding would write it.

        One that is longer than what the model reads at once is read in windows.
        """
        sizes = {"seq_len": self.max_length, "stride": self.max_length}
        windows = [
            (number, window)
            for number, (context, rest) in enumerate(pairs)
            for window in cut_windows(np.array([*context, *rest]), **sizes, first=len(context))
        ]
        sums, greedy = [0.0] * len(pairs), [True] * len(pairs)
        for start in range(0, len(windows), self.batch_size):
            part = windows[start : start + self.batch_size]
            tokens = torch.zeros(len(part), max(len(window.tokens) for _, window in part) - 1, dtype=torch.int64)
            for row, (_, window) in zip(tokens, part, strict=True):
                row[: len(window.tokens) - 1] = torch.from_numpy(window.tokens[:-1])
            logits = self.loaded.model.predict(tokens.to(self.loaded.device)).float()
            for row, (number, window) in zip(logits, part, strict=True):
                last = len(window.tokens) - 1
                found = read_continuation(row[last - window.scored : last], window.tokens[last + 1 - window.scored :])
                sums[number] += check_loss(found[0], "a task")
                greedy[number] &= found[1]
        return list(zip(sums, greedy, strict=True))

    def score_texts(self, texts: Sequence[str], prefix: int) -> list[float]:
        """The log likelihoods of whole texts, which `prefix` begins."""
        found = self.score([([prefix], self.loaded.tokenizer.encode(text).tolist()) for text in texts])
        return [likelihood for likelihood, _ in found]

    def write(self, requests: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
        """What the model writes after each context, up to the first of the texts in `until`."""
        found = [""] * len(requests)
        alike: dict[str, list[int]] = {}
        for number, (_, options) in enumerate(requests):
            alike.setdefault(json.dumps(options, sort_keys=True, default=str), []).append(number)
        for numbers in alike.values():
            ordered = sorted(numbers, key=lambda number: len(requests[number][0]))
            for start in range(0, len(ordered), self.batch_size):
                part = ordered[start : start + self.batch_size]
                written = self._write_alike([requests[number][0] for number in part], requests[part[0]][1], start)
                for number, text in zip(part, written, strict=True):
                    found[number] = text
        return found

    def _write_alike(self, contexts: Sequence[str], options: dict[str, Any], first_row: int) -> list[str]:
        """The same for contexts with the same options, all at once."""
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else until
        count = min(int(options.get("max_gen_toks") or USUAL_NEW_TOKENS), self.max_length - 1)
        draws = bool(options.get("do_sample")) or float(options.get("temperature") or 0) > 0
        sampling = Sampling(
            temperature=float(options.get("temperature") or 1.0) if draws else 0.0,
            top_p=float(options.get("top_p") or 1.0) if draws else 1.0,
        )
        looked_at = max(map(len, until), default=0) + TOKENS_WITHOUT_TEXT

        def is_done(row: Generation) -> bool:
            newest = self.loaded.tokenizer.decode(row.tokens[-looked_at:])
            return any(word in newest for word in until)

        rows = generate(
            self.loaded.model,
            [self.encode(context, None)[-(self.max_length - count) :] for context in contexts],
            device=self.loaded.device,
            max_new_tokens=count,
            stop_ids={self.loaded.tokenizer.eos_id},
            sampling=sampling,
            first_row=first_row,
            is_done=is_done if until else None,
        )
        texts = [self.loaded.decode_after(row.prompt, row.tokens) for row in rows]
        return [text[: min([text.index(word) for word in until if word in text], default=len(text))] for text in texts]


def read_continuation(logits: torch.Tensor, tokens: np.ndarray) -> tuple[float, bool]:
    """The log likelihood of tokens under logits [tokens, vocabulary], and whether each is the likeliest."""
    wanted = torch.as_tensor(tokens, device=logits.device)
    chosen = F.log_softmax(logits, dim=-1).gather(-1, wanted.unsqueeze(-1))
    return float(chosen.double().sum()), bool((logits.argmax(-1) == wanted).all())

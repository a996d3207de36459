"""lm-eval's model interface around a loaded model, so that its tasks score what was trained (extra: eval)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from monograph.errors import ConfigError
from monograph.generate.load import LoadedModel
from monograph.generate.loop import generate
from monograph.generate.perplexity import measure
from monograph.generate.sampling import Sampling

USUAL_NEW_TOKENS = 256
"""What a task gets that does not say how long its answers may be."""


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
            why=f"it knows {len(manager.all_tasks)} tasks" + (f", with those in {folder}" if folder else ""),
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
            return [self.scores.score_text(each.args[0], self.prefix_token_id) for each in requests]

        def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
            return [self.scores.write(*each.args) for each in requests]

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
        """The log likelihood of each continuation of a context, and whether greedy decoding would write it."""
        found: list[tuple[float, bool]] = []
        for start in range(0, len(pairs), self.batch_size):
            part = pairs[start : start + self.batch_size]
            texts = [[*context, *rest][-self.max_length - 1 :] for context, rest in part]
            tokens = torch.zeros(len(part), max(map(len, texts)) - 1, dtype=torch.int64)
            for row, text in zip(tokens, texts, strict=True):
                row[: len(text) - 1] = torch.tensor(text[:-1])
            logits = self.loaded.model.predict(tokens.to(self.loaded.device)).float()
            for row, text, (_, rest) in zip(logits, texts, part, strict=True):
                found.append(read_continuation(row[len(text) - 1 - len(rest) : len(text) - 1], rest))
        return found

    def score_text(self, text: str, prefix: int) -> float:
        """The log likelihood of a whole text, which `prefix` begins."""
        ids = np.array([prefix, *self.loaded.tokenizer.encode(text).tolist()])
        sizes = {"seq_len": self.max_length, "stride": self.max_length, "batch_size": self.batch_size}
        return -measure(self.loaded.model, [(ids, 0)], device=self.loaded.device, **sizes).nll

    def write(self, context: str, options: dict[str, Any]) -> str:
        """What the model writes after a context, up to the first of the texts in `until`."""
        until = options.get("until") or []
        until = [until] if isinstance(until, str) else until
        count = int(options.get("max_gen_toks") or USUAL_NEW_TOKENS)
        count = min(count, self.max_length - 1)
        prompt = self.encode(context, None)[-(self.max_length - count) :]
        draws = bool(options.get("do_sample")) or float(options.get("temperature") or 0) > 0
        sampling = Sampling(
            temperature=float(options.get("temperature") or 1.0) if draws else 0.0,
            top_p=float(options.get("top_p") or 1.0) if draws else 1.0,
        )
        (row,) = generate(
            self.loaded.model,
            [prompt],
            device=self.loaded.device,
            max_new_tokens=count,
            stop_ids={self.loaded.tokenizer.eos_id},
            sampling=sampling,
        )
        text = self.loaded.decode_after(row.prompt, row.tokens)
        ends = [text.index(word) for word in until if word in text]
        return text[: min(ends)] if ends else text


def read_continuation(logits: torch.Tensor, tokens: Sequence[int]) -> tuple[float, bool]:
    """The log likelihood of tokens under logits [tokens, vocabulary], and whether each is the likeliest."""
    wanted = torch.tensor(tokens, device=logits.device)
    chosen = F.log_softmax(logits, dim=-1).gather(-1, wanted.unsqueeze(-1))
    return float(chosen.double().sum()), bool((logits.argmax(-1) == wanted).all())

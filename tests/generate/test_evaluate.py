"""`monograph evaluate`: perplexity as transformers computes it, per set; a task of lm-eval on local data."""

import importlib.util
import json
import math

import numpy as np
import pytest
import torch
import transformers

from monograph.cli import main
from monograph.generate.lm_eval_model import ModelScores
from monograph.generate.load import load_model
from monograph.generate.perplexity import cut_windows
from monograph.labels import IGNORED_LABEL
from monograph.train.checkpoint.model_source import open_source
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.sources import FileSource
from tests.kit.pretrained import FAMILIES, TEXT, write_pretrained

TASK = """
task: local_choice
dataset_path: json
dataset_kwargs:
  data_files: {{test: {path}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
metric_list:
  - metric: acc
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small model, a jsonl of short texts, and one text that is longer than the model's context."""
    place = tmp_path_factory.mktemp("evaluate")
    write_pretrained(place / "tiny", scale=3.0)
    (place / "short.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXT[:9]))
    (place / "long.txt").write_text(" ".join(TEXT))
    return place


def evaluate(capsys, *words):
    capsys.readouterr()
    assert main(["evaluate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def score_theirs(folder, texts):
    """The loss of every token of whole texts, from transformers' logits."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    losses = []
    for text in texts:
        ids = torch.tensor([[*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0], ids[0, 1:], reduction="none"))
    return torch.cat(losses)


def test_perplexity_of_a_set_is_that_of_transformers(folder, capsys):
    found = evaluate(capsys, folder / "tiny", "--data", f"facts={folder / 'short.jsonl'}", "--batch_size", 4)
    losses = score_theirs(folder / "tiny", TEXT[:9])
    facts = found["sets"]["facts"]
    assert facts["tokens"] == len(losses) and facts["documents"] == 9
    assert facts["loss"] == pytest.approx(losses.mean().item(), abs=1e-5)
    assert facts["perplexity"] == pytest.approx(math.exp(losses.mean().item()), rel=1e-5)
    size = sum(len(text.encode()) for text in TEXT[:9])
    assert facts["bits_per_byte"] == pytest.approx(losses.double().sum().item() / math.log(2) / size, rel=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_every_family_is_that_of_transformers(family, tmp_path, capsys):
    write_pretrained(tmp_path, family, scale=3.0)
    (tmp_path / "short.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXT[:9]))
    found = evaluate(capsys, tmp_path, "--data", f"facts={tmp_path / 'short.jsonl'}", "--batch_size", 4)
    assert found["sets"]["facts"]["loss"] == pytest.approx(score_theirs(tmp_path, TEXT[:9]).mean().item(), abs=1e-5)


def test_documents_without_text_are_left_out_as_in_training(folder, capsys):
    rows = [*[""] * 50, TEXT[0], "", TEXT[1]]
    (folder / "sparse.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in rows))
    scores = {}
    for limit in (0, 1):
        words = ["--data", f"set={folder / 'sparse.jsonl'}", "--limit", limit]
        scores[limit] = evaluate(capsys, folder / "tiny", *words)["sets"]["set"]
        losses = score_theirs(folder / "tiny", TEXT[: limit or 2])
        assert scores[limit]["documents"] == (limit or 2) and scores[limit]["tokens"] == len(losses)
        assert scores[limit]["loss"] == pytest.approx(losses.mean().item(), abs=1e-5)


def test_every_label_that_training_has_is_scored_once(folder, capsys):
    """Texts between separators, an empty one and one longer than the windows among them."""
    texts = [TEXT[0], "", " ".join(TEXT[:20]), "a", TEXT[5]]
    (folder / "parts.txt").write_text("\n--\n".join(texts))
    words = ["--data", f"set={folder / 'parts.txt'}", "--seq_len", 16, "--document_separator", "\n--\n"]
    found = evaluate(capsys, folder / "tiny", *words)["sets"]["set"]
    tokenizer = load_model(open_source(str(folder / "tiny")), torch.device("cpu"), length=16).tokenizer
    source = FileSource(FileSource.Config(path=str(folder / "parts.txt"), document_separator="\n--\n"))
    corpus = source.load_corpus(tokenizer)
    config = DataLoaderConfig(source=source.config, held_out_fraction=0.0)
    labels = config.build(tokenizer=tokenizer, seq_len=corpus.token_count, seed=1).sample(0, 0)["labels"]
    assert found["documents"] == corpus.document_count == 4
    assert found["tokens"] == (labels != IGNORED_LABEL).sum() == corpus.token_count - corpus.document_count


def test_half_a_character_is_refused_in_words(folder, capsys):
    (folder / "half.jsonl").write_text('{"text": "one"}\n{"text": "\\ud800"}')
    assert main(["evaluate", str(folder / "tiny"), "--data", str(folder / "half.jsonl")]) == 2
    assert "half.jsonl:2: the text is not valid Unicode" in capsys.readouterr().err


def test_sets_are_measured_one_by_one_and_named(folder, capsys):
    found = evaluate(capsys, folder / "tiny", "--data", folder / "short.jsonl", f"whole={folder / 'long.txt'}")["sets"]
    assert list(found) == ["short.jsonl", "whole"]
    alone = evaluate(capsys, folder / "tiny", "--data", f"whole={folder / 'long.txt'}")["sets"]
    assert found["whole"] == pytest.approx(alone["whole"])


def test_a_document_beyond_the_context_is_read_in_windows(folder, capsys):
    path = f"whole={folder / 'long.txt'}"
    cut = evaluate(capsys, folder / "tiny", "--data", path, "--seq_len", 64)["sets"]["whole"]
    seen = evaluate(capsys, folder / "tiny", "--data", path, "--seq_len", 64, "--stride", 8)["sets"]["whole"]
    assert cut["tokens"] == seen["tokens"] > 256
    assert cut["loss"] != seen["loss"], "with a stride, tokens see more of what comes before"


def test_windows_score_every_token_but_the_first_once():
    for length in (1, 2, 9, 33, 64, 65):
        for seq_len, stride in ((8, 8), (8, 3), (64, 64), (16, 1)):
            document, scored = np.arange(length), []
            for window in cut_windows(document, seq_len, stride):
                assert len(window.tokens) <= seq_len + 1
                scored += window.tokens[len(window.tokens) - window.scored :].tolist()
            assert scored == list(range(1, length)), (length, seq_len, stride)


def test_a_table_is_printed_for_people(folder, capsys):
    assert main(["evaluate", str(folder / "tiny"), "--data", str(folder / "short.jsonl"), "--limit", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("short.jsonl: perplexity ") and "2 documents" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["tiny"], "nothing to evaluate"),
        (["tiny", "--data", "missing.txt"], "no such file"),
        (["tiny", "--data", "short.jsonl", "--seq_len", "1000"], "--seq_len 256"),
        (["tiny", "--data", "short.jsonl", "--seq_len", "8", "--stride", "9"], "--stride 8"),
        (["tiny", "--data", "a=short.jsonl", "a=long.txt"], "two sets"),
        (["tiny", "--data", "long.txt", "short.jsonl", "--text_field", "body"], "do:  --text_field text"),
        (["tiny", "--data", "short.jsonl", "--num_fewshot", "2"], "--tasks"),
        (["short.jsonl", "--data", "short.jsonl"], "is a file"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_words(folder, capsys, monkeypatch, words, complaint):
    monkeypatch.chdir(folder)
    assert main(["evaluate", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and "loaded" not in said, "refused before weights are read"


@pytest.fixture(scope="module")
def both(folder):
    """Our model as tasks ask it, 16 tokens at a time, and transformers' of the same folder."""
    loaded = load_model(open_source(str(folder / "tiny")), torch.device("cpu"), length=64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    return ModelScores(loaded, batch_size=3, max_length=16), theirs


def score_windows(model, context, rest, length):
    """The sum over blocks of the continuation, each after as much as fits; and whether each token is the likeliest."""
    text, total, is_greedy = [*context, *rest], 0.0, True
    for start in range(len(context), len(text), length):
        stop = min(start + length, len(text))
        window = torch.tensor([text[max(0, stop - length - 1) : stop]])
        with torch.no_grad():
            likelihoods = model(window[:, :-1]).logits[0, start - stop :].log_softmax(-1)
        wanted = window[0, start - stop :]
        total += likelihoods.gather(-1, wanted[:, None]).sum().item()
        is_greedy &= bool((likelihoods.argmax(-1) == wanted).all())
    return total, is_greedy


def test_a_continuation_longer_than_the_model_reads_at_once_is_scored_whole(both):
    scores, theirs = both
    random = np.random.default_rng(0)
    sizes = [(1, 3), (5, 16), (5, 17), (1, 16), (1, 40), (30, 2), (30, 33), (7, 1)]
    pairs = [tuple(random.integers(3, 300, size).tolist() for size in each) for each in sizes]
    found = scores.score(pairs)
    for (context, rest), (likelihood, is_greedy) in zip(pairs, found, strict=True):
        wanted = score_windows(theirs, context, rest, 16)
        assert likelihood == pytest.approx(wanted[0], abs=1e-4) and is_greedy == wanted[1]


def test_texts_are_scored_together_as_each_alone(both):
    scores, theirs = both
    texts = [TEXT[0], " ".join(TEXT[:5]), "", "a"]
    found = scores.score_texts(texts, 0)
    ids = [scores.loaded.tokenizer.encode(text).tolist() for text in texts]
    assert found == pytest.approx([score_windows(theirs, [0], each, 16)[0] for each in ids], abs=1e-4)


def test_answers_end_at_the_first_stop_text_without_writing_on_and_are_written_together(both, monkeypatch):
    scores, theirs = both
    contexts = [TEXT[number][: 6 + number] for number in range(5)]
    whole = []
    for context in contexts:
        prompt = scores.encode(context, None)[-8:]
        ids = theirs.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=1)
        whole.append(scores.loaded.decode_after(prompt, ids[0, len(prompt) :].tolist()))
    free = {"until": ["no such text"], "max_gen_toks": 8}
    assert scores.write([(context, free) for context in contexts]) == whole
    stop = whole[0][1:3]
    calls, predict = [], scores.loaded.model.predict
    monkeypatch.setattr(scores.loaded.model, "predict", lambda *a, **k: calls.append(len(a[0])) or predict(*a, **k))
    (cut,) = scores.write([(contexts[0], {"until": [stop, "x" * 50], "max_gen_toks": 8})])
    assert cut == whole[0][: whole[0].index(stop)] and len(calls) < 8
    calls.clear()
    mixed = [
        (context, {"until": [stop] if number % 2 else [], "max_gen_toks": 8}) for number, context in enumerate(contexts)
    ]
    assert scores.write(mixed) == [text.split(stop)[0] if number % 2 else text for number, text in enumerate(whole)]
    assert len(calls) <= 16, "three without a stop text at once, and two with one"


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval (extra: eval) is not installed")
def test_a_task_of_lm_eval_has_the_score_that_transformers_logits_give(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [
        {"question": f"the answer to question {number}", "choices": [" is", " to", " the"], "answer": number % 3}
        for number in range(12)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "task.yaml").write_text(TASK.format(path=tmp_path / "rows.jsonl"))
    words = ("--tasks", "local_choice", "--task_folder", tmp_path)
    ours = evaluate(capsys, folder / "tiny", *words)["tasks"]["local_choice"]
    assert ours["acc"] == sum(choose_theirs(folder, row) == row["answer"] for row in rows) / len(rows)
    assert 0 < ours["acc"] < 1, "a score that says something"


def choose_theirs(folder, row):
    """The choice that transformers' model finds likeliest."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "tiny")
    scores = []
    for choice in row["choices"]:
        context, whole = (tokenizer(text)["input_ids"] for text in (row["question"], row["question"] + choice))
        with torch.no_grad():
            likelihoods = model(torch.tensor([whole[:-1]])).logits[0].log_softmax(-1)
        wanted = torch.tensor(whole[1:])
        scores.append(likelihoods.gather(-1, wanted[:, None])[len(context) - 1 :].sum().item())
    return scores.index(max(scores))

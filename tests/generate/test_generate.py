"""`monograph generate`: the tokens that transformers writes, with and without a cache, from any folder."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers

from monograph.cli import main
from monograph.commands.model_arguments import GenerateArguments
from monograph.generate.load import load_model
from monograph.generate.loop import generate
from monograph.generate.sampling import Sampling
from monograph.train.checkpoint.model_source import open_source
from tests.kit.pretrained import FAMILIES, read_json, write_pretrained, write_texts

PROMPTS = ("the answer to question 3", "question", "the answer is 21. the answer to question 3 is")
COUNT = 24
TUNE = """
    --dataloader.dataset texts --training.seq_len 32 --training.local_batch_size 2 --training.compute_dtype float32
    --training.steps 2 --metrics.progress off --debug.device cpu --validator.interval 0 --compile.mode eager
    --optimizer.lr 0.01 --lr_scheduler.warmup_steps 0
"""
CPU = torch.device("cpu")
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of every family, with weights that make greedy tokens vary."""
    place = tmp_path_factory.mktemp("generate")
    for family in FAMILIES:
        write_pretrained(place / family, family, scale=6.0)
    write_texts(place / "texts")
    return place


def write_theirs(path, prompts=PROMPTS, **encoding):
    """What transformers writes after each prompt, greedily."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    found = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt", **encoding)
        out = model.generate(**ids, max_new_tokens=COUNT, do_sample=False)
        found.append(out[0, ids["input_ids"].shape[1] :].tolist())
    return found


def write_ours(capsys, path, *flags, prompts=PROMPTS):
    """What the command prints as JSON, for a file of prompts."""
    (path.parent / "prompts.txt").write_text("\n".join(prompts) + "\n\n")
    capsys.readouterr()
    words = ["--prompt_file", str(path.parent / "prompts.txt"), "--max_new_tokens", str(COUNT), "--json", *flags]
    assert main(["generate", str(path), *words]) == 0
    return [json.loads(line)["tokens"] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(
            family, marks=pytest.mark.long if family in ("qwen2", "qwen3", "mistral", "gemma2", "gemma3") else ()
        )
        for family in FAMILIES
    ],
)
def test_greedy_tokens_are_those_of_transformers(folder, capsys, family):
    expected = write_theirs(folder / family)
    assert len({tuple(each) for each in expected}) == len(PROMPTS)
    assert write_ours(capsys, folder / family) == expected, "three prompts of different lengths at once"
    assert write_ours(capsys, folder / family, "--cache", "false") == expected


def test_prompts_write_special_tokens_only_where_that_is_allowed(folder, capsys):
    path, prompts = folder / "llama", ("the answer<|im_end|>", "question</s> 3<|im_end|>the answer")
    plain = write_ours(capsys, path, prompts=prompts)
    assert plain == write_theirs(path, prompts, split_special_tokens=True)
    allowed = write_ours(capsys, path, "--allow_special", prompts=prompts)
    assert allowed == write_theirs(path, prompts) != plain


@pytest.mark.parametrize(
    "family", [pytest.param(family, marks=() if family == "qwen3_moe" else pytest.mark.long) for family in FAMILIES]
)
def test_a_fine_tuned_export_writes_what_its_run_writes(folder, capsys, family, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["train", "--model.from", family, *TUNE.split()]) == 0
    run, out = folder / "outputs" / family, folder / f"tuned-{family}"
    assert main(["hf", "export", str(run), str(out)]) == 0
    ours = write_ours(capsys, run)
    assert ours == write_theirs(out)
    assert ours == write_ours(capsys, out)
    assert ours != write_ours(capsys, folder / family), "two steps at a high rate change what it writes"


def test_drawn_tokens_follow_the_seed_and_not_the_cache_or_the_batch(folder, capsys):
    flags = ("--temperature", "0.9", "--top_p", "0.8")
    first = write_ours(capsys, folder / "llama", *flags)
    assert write_ours(capsys, folder / "llama", *flags, "--cache", "false") == first
    assert write_ours(capsys, folder / "llama", *flags, "--batch_size", "1") == first
    assert write_ours(capsys, folder / "llama", *flags, "--seed", "1") != first


def test_a_text_ends_at_the_end_tokens_of_the_generation_config(folder, capsys, monkeypatch):
    second = write_ours(capsys, folder / "qwen3")[0][1]
    settings = folder / "qwen3" / "generation_config.json"
    before = settings.read_text()
    settings.write_text(json.dumps(read_json(settings) | {"eos_token_id": [1, second]}))
    found = write_ours(capsys, folder / "qwen3")
    assert found[0][-1] == second and len(found[0]) <= 2
    assert found == write_theirs(folder / "qwen3")
    settings.write_text(json.dumps(read_json(settings) | {"eos_token_id": 1, "repetition_penalty": 1.3}))
    assert write_ours(capsys, folder / "qwen3") == write_theirs(folder / "qwen3")
    settings.write_text(before)


def test_the_prompt_comes_before_the_text(folder, capsys):
    capsys.readouterr()
    assert main(["generate", str(folder / "llama"), "--prompt", "the answer", "--max_new_tokens", "2"]) == 0
    assert capsys.readouterr().out.startswith("the answer")


def test_a_model_without_a_cache_reads_the_text_again(folder, monkeypatch):
    loaded = load_model(open_source(str(folder / "llama")), CPU, length=64)
    assert loaded.model.rope.cos.shape[0] == 64, "tables are as long as the texts"
    prompt, steps = [loaded.encode("question")], {"device": CPU, "max_new_tokens": 6}
    expected = generate(loaded.model, prompt, **steps)[0].tokens
    monkeypatch.setattr(type(loaded.model), "new_cache", lambda *_: None)
    assert generate(loaded.model, prompt, **steps)[0].tokens == expected


def test_the_type_to_compute_in_can_be_chosen(folder):
    loaded = load_model(open_source(str(folder / "deepseek_v3")), CPU, length=8, dtype=torch.bfloat16)
    assert {each.dtype for each in loaded.model.parameters()} == {torch.bfloat16}
    assert len(generate(loaded.model, [[5, 6]], device=CPU, max_new_tokens=3, sampling=Sampling())[0].tokens) == 3


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["missing", "--prompt", "a"], "no folder missing"),
        (["llama"], "--prompt is missing"),
        (["llama", "--prompt", "a", "--prompt_file", "b"], "both"),
        (["llama", "--prompt", "a", "--top_p", "0.5"], "temperature is 0"),
        (["llama", "--prompt", "a", "--temperature", "-1"], "temperature"),
        (["llama", "--prompt", "a", "--max_new_tokens", "300"], "--max_new_tokens 254"),
        (["llama", "--prompt", "a", "--tokenizer", "texts"], "tokenizer.json"),
        (["llama", "--prompt", "a", "--max_new_tokens", "0"], "max_new_tokens"),
        (["texts", "--prompt", "a"], "holds no model"),
        (["llama", "--prompt_file", "no_prompts.txt"], "no prompt"),
        (["llama", "--prompt_file", "latin.txt"], "UTF-8"),
        (["llama", "--prompt_file", "pipe.txt"], "it is not a regular file"),
        (["llama", "--prompt_file", "hole.txt"], "larger than 64 MiB"),
        (
            ["llama", "--prompt_file", "long.txt", "--max_new_tokens", "9"],
            "prompt_file long.txt: a prompt of 301 tokens",
        ),
        (["llama", "--prompt", "caf\udce9"], "UTF-8"),
    ],
)
def test_what_cannot_be_written_is_refused_in_words(folder, capsys, monkeypatch, words, complaint):
    monkeypatch.chdir(folder)
    Path("no_prompts.txt").write_text("\n \n")
    Path("latin.txt").write_bytes("é".encode("latin1"))
    Path("long.txt").write_text("a" * 300)
    Path("hole.txt").touch()
    os.truncate("hole.txt", 100 << 30)
    if not Path("pipe.txt").exists():
        os.mkfifo("pipe.txt")
    assert main(["generate", *words]) == 2
    said = capsys.readouterr().err
    assert complaint in said and "loaded" not in said, "refused before weights are read"


def test_only_line_feeds_end_a_prompt(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufeffone\u2028two\r\n\n \nthree\x0cfour\x85five\rsix\n".encode())
    arguments = GenerateArguments(folder="any", prompt_file=str(file))
    assert arguments.prompts() == ["one\u2028two", "three\x0cfour\x85five\rsix"]


@pytest.mark.long
def test_a_checkpoint_of_any_mesh_writes_what_one_device_does(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    flags = [*TUNE.split(), "--training.global_batch_size", "4"]
    flags[flags.index("--compile.mode") + 1] = "graph"
    meshes = {
        "one": [],
        "tensor": ["--ranks", "2", "--parallelism.tensor_parallel_degree", "2"],
        "expert": ["--ranks", "2", "--parallelism.expert_parallel_degree", "2"],
    }
    for name, mesh in meshes.items():
        assert main(["train", "--model.from", "deepseek_v3", *flags, *mesh, "--job.dump_folder", name]) == 0
    expected = write_ours(capsys, folder / "one")
    for name in meshes:
        assert write_ours(capsys, folder / name) == expected, name
        assert write_ours(capsys, folder / name / "checkpoints" / "step-00000002") == expected, name

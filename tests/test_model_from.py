"""`--model.from FOLDER`: model, tokenizer and weights come from a folder, for every command that takes a recipe."""

import json
import logging
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file

from monograph.cli import main
from monograph.commands.arguments import ConfigOptions
from monograph.commands.request import read_request
from monograph.config.json_form import dump_json
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.errors import CheckpointError, ConfigError
from monograph.recipes.deepseek_v3 import deepseek_v3_debugmodel
from monograph.recipes.llama3 import llama3_debugmodel
from monograph.recipes.pretrained import name_recipe, render_run, start_from
from monograph.recipes.qwen3 import qwen3_debugmodel_moe
from monograph.run import train
from monograph.train.preflight import check_before_start
from monograph.train.records import read_records
from tests.kit.pretrained import read_json, write_pretrained, write_texts

SMALL = """
    --dataloader.dataset texts --training.seq_len 32 --training.local_batch_size 4 --training.compute_dtype float32
    --metrics.progress off --debug.device cpu --validator.interval 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pretrained model, texts, and a run of two steps from it."""
    place = tmp_path_factory.mktemp("from")
    write_pretrained(place / "tiny", rope_parameters={"rope_theta": 12345.0, "rope_type": "default"})
    write_texts(place / "texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["train", "--model.from", "tiny", *SMALL.split(), "--training.steps", "2"]) == 0
    return place


def test_the_settings_of_the_folder_are_those_of_the_run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = read_request(["--model.from", "tiny"], ConfigOptions()).config
    assert config.model.rope.theta == 12345.0
    assert config.model.norm_eps == 1e-6
    assert config.tokenizer.path == "tiny"
    assert config.tokenizer.add_bos, "the tokenizer's own settings put bos before a text"
    assert config.checkpoint.initial_load_path == "tiny"
    assert config.job.dump_folder == "outputs/tiny"


def test_a_recipe_keeps_its_own_settings_and_takes_the_model_of_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    config = read_request(
        ["llama3_debugmodel", "--model.from", "tiny", "--optimizer.lr", "0.5"], ConfigOptions()
    ).config
    assert (config.model.dim, config.training.seq_len, config.optimizer.lr) == (32, 256, 0.5)
    assert config.job.dump_folder == "outputs/llama3_debugmodel"


KEPT = {
    "model.mask": "document",
    "model.max_documents": 40,
    "model.dropout": 0.1,
    "model.kernels": "plain",
    "model.loss.chunk_tokens": 64,
    "model.attention.kernel": "reference",
}


def test_a_recipe_keeps_how_its_model_is_trained_and_takes_all_else_of_the_folders_model(folder, monkeypatch):
    monkeypatch.chdir(folder)
    recipe = llama3_debugmodel()
    for path, value in KEPT.items():
        recipe = replace_leaf(recipe, path, value)
    found = {f"model.{leaf.path}": leaf.value for leaf in find_leaves(start_from("tiny", recipe).model)}
    theirs = {f"model.{leaf.path}": leaf.value for leaf in find_leaves(start_from("tiny").model)}
    assert found == {**theirs, **KEPT}
    assert set(KEPT) <= set(theirs), "every one is a setting of the folder's model"


def test_a_published_recipe_keeps_its_document_mask(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["llama3_8b", "--model.from", "tiny", "--training.seq_len", "32"]
    assert read_request(words, ConfigOptions()).config.model.mask == "document"
    words += ["--model.mask", "causal"]
    assert read_request(words, ConfigOptions()).config.model.mask == "causal"


def test_a_recipe_says_how_experts_are_balanced_and_an_import_keeps_their_biases(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for family in ("qwen3_moe", "deepseek_v3", "qwen3"):
        write_pretrained(folder / family, family)
    mine = qwen3_debugmodel_moe()
    found = start_from("qwen3_moe", mine).model.moe
    assert found.balance == mine.model.moe.balance and found.balance.is_on
    assert not start_from("qwen3_moe").model.moe.balance.is_on
    router = start_from("deepseek_v3", deepseek_v3_debugmodel()).model.moe.router
    assert (router.expert_bias, router.bias_update_rate) == (True, 0)
    mine.model.moe.experts.backend = "loop"
    assert start_from("qwen3", mine).model == start_from("qwen3").model, "there are no experts"


def test_selection_biases_that_a_recipe_moves_and_a_folder_does_not_are_named_in_the_log(folder, monkeypatch, caplog):
    monkeypatch.chdir(folder)
    write_pretrained(folder / "deepseek_v3", "deepseek_v3")
    monkeypatch.setattr(logging.getLogger("monograph"), "propagate", True)
    with caplog.at_level("INFO"):
        start_from("deepseek_v3", deepseek_v3_debugmodel())
    assert "--model.moe.router.bias_update_rate 0.001 moves them" in caplog.text


def test_functions_of_a_recipe_are_not_lost_on_the_way_to_other_weights(folder, monkeypatch):
    monkeypatch.chdir(folder)
    recipe = llama3_debugmodel()
    recipe.model.attention = recipe.model.attention.replace(kernel="flex", score_mod=halve_scores)
    config = start_from("tiny", recipe)
    assert config.model.attention.score_mod is halve_scores
    with pytest.raises(CheckpointError, match="score_mod"):
        check_before_start(config)


def halve_scores(score, *_where):
    return score / 2


def test_the_first_step_computes_with_the_weights_of_the_folder(folder):
    assert read_json(folder / "outputs/tiny/config.json")["checkpoint"]["initial_load_path"] == "tiny"
    losses = [each["loss"] for each in read_records(folder / "outputs/tiny/metrics.jsonl") if "loss" in each]
    batch = find_first_batch(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    logits = theirs(batch["tokens"]).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, batch["labels"].flatten())
    assert losses[0] == pytest.approx(expected.item(), abs=1e-5)


def find_first_batch(folder):
    """The first micro-batch of the run, from its own config."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = read_request(["--model.from", "tiny", *SMALL.split()], ConfigOptions()).config
        data = config.dataloader.build(
            tokenizer=config.tokenizer.build(), seq_len=32, vocab_size=320, seed=config.debug.seed, split="train"
        )
        samples = [data.sample(0, index) for index in range(4)]
        return {name: torch.stack([torch.as_tensor(each[name]) for each in samples]) for name in ("tokens", "labels")}


def test_the_folder_of_a_run_holds_what_its_model_needs_to_be_used(folder):
    kept = {path.name for path in (folder / "outputs/tiny/tokenizer").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"} <= kept


def test_a_run_starts_from_an_import_as_from_the_folder_it_was_made_of(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["hf", "import", "tiny", str(tmp_path / "start")]) == 0
    flags = [*SMALL.split(), "--training.steps", "2", "--job.dump_folder", str(tmp_path / "run")]
    assert main(["train", "--model.from", str(tmp_path / "start"), *flags]) == 0
    same = [read_records(each / "metrics.jsonl") for each in (tmp_path / "run", folder / "outputs/tiny")]
    assert [each.get("loss") for each in same[0]] == [each.get("loss") for each in same[1]]


def test_a_killed_run_continues_with_load_auto_and_a_new_one_begins_with_the_folder(
    folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    flags = [*SMALL.split(), "--job.dump_folder", str(tmp_path / "run"), "--checkpoint.load", "auto"]
    flags += ["--lr_scheduler.on_extend", "redecay"]
    assert main(["train", "--model.from", "tiny", *flags, "--training.steps", "1"]) == 0
    assert main(["train", "--model.from", "tiny", *flags, "--training.steps", "2"]) == 0
    losses = [each["loss"] for each in read_records(tmp_path / "run/metrics.jsonl") if "loss" in each]
    once = [each["loss"] for each in read_records(folder / "outputs/tiny/metrics.jsonl") if "loss" in each]
    assert len(losses) == 2
    assert losses[0] == once[0]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model.rope.theta", "500"], r"model.rope.theta: 12345.0 -> 500.0"),
        (["--checkpoint.initial_load_path", "outputs/tiny"], r"initial_load_path outputs/tiny/checkpoints"),
        (["--checkpoint.initial_load_path", "missing"], "no such folder"),
    ],
)
def test_weights_that_are_not_of_the_model_are_refused_before_it_is_built(folder, monkeypatch, words, complaint):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("monograph.run.build_step", None)
    with pytest.raises(CheckpointError, match=complaint):
        train(read_request(["--model.from", "tiny", *SMALL.split(), *words], ConfigOptions()).config)


def test_the_generated_recipe_makes_the_same_configuration(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    config = start_from("tiny")
    space: dict = {}
    exec(render_run("tiny", config), space)
    assert dump_json(space[name_recipe("tiny")]()) == dump_json(config)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model.from", "missing"], "no folder missing"),
        (["--model.from", "texts"], "holds no model"),
        (["--model.from"], "one folder"),
        (["--model.from", "tiny", "--model.from", "tiny"], "twice"),
        (["--model.from", "tiny", "--model.dimm", "3"], "model.dimm"),
        (["--model.from", "bare"], "tokenizer"),
        (["--model.from", "falcon"], "falcon"),
        (["--model.from", "weightless"], "no safetensors"),
        (["--model.form", "tiny"], "recipe"),
    ],
)
def test_what_cannot_be_started_from_is_refused(folder, monkeypatch, words, complaint):
    monkeypatch.chdir(folder)
    for name in ("bare", "falcon", "weightless"):
        (folder / name).mkdir(exist_ok=True)
        shutil.copy("tiny/config.json", folder / name / "config.json")
    shutil.copy("tiny/model.safetensors", folder / "bare")
    (folder / "falcon/config.json").write_text(json.dumps({"model_type": "falcon"}))
    with pytest.raises(ConfigError, match=complaint):
        read_request(words, ConfigOptions())


def test_a_fine_tuned_model_goes_back_complete(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert main(["hf", "export", "outputs/tiny", "tuned", "--max_file_gb", "0.00005"]) == 0
    names = {path.name for path in (folder / "tuned").iterdir()}
    assert "model.safetensors.index.json" in names, "files are split by size"
    model = transformers.AutoModelForCausalLM.from_pretrained("tuned")
    tokenizer = transformers.AutoTokenizer.from_pretrained("tuned")
    assert model.generation_config.eos_token_id == [1, 2]
    assert (model.config.bos_token_id, model.config.eos_token_id) == (0, 1)
    assert tokenizer.encode("question 3")[0] == 0
    assert tokenizer.eos_token == "</s>"
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>hi<|im_end|>"
    before = transformers.AutoModelForCausalLM.from_pretrained("tiny")
    assert not model.get_input_embeddings().weight.equal(before.get_input_embeddings().weight)


def test_weights_are_exported_in_the_type_that_was_asked_for(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert (
        main(["hf", "export", "outputs/tiny/checkpoints", "narrow", "--dtype", "bfloat16", "--tokenizer", "none"]) == 0
    )
    assert not (folder / "narrow/tokenizer.json").exists()
    assert {each.dtype for each in load_file("narrow/model.safetensors").values()} == {torch.bfloat16}
    assert read_json(folder / "narrow/config.json")["torch_dtype"] == "bfloat16"


def test_a_damaged_folder_is_refused_in_words_and_no_run_begins(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    shutil.copytree(folder / "tiny", tmp_path / "torn")
    (tmp_path / "torn/model.safetensors").write_bytes(b"torn")
    words = [
        "train",
        "--model.from",
        str(tmp_path / "torn"),
        *SMALL.split(),
        "--job.dump_folder",
        str(tmp_path / "run"),
    ]
    assert main(words) != 0
    said = capsys.readouterr().err
    assert "model.safetensors cannot be read" in said
    assert "Traceback" not in said

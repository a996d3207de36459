"""Every `do:` that the program can print is a sentence, or words that work when they are typed."""

import re
import shlex

import pytest

from monograph.commands.table import COMMANDS
from monograph.config.leaves import find_leaves, find_sections
from monograph.config.overrides import Override, apply_overrides, split_flags
from monograph.errors import ConfigError
from monograph.recipes.catalog import find_recipes, load_recipe
from tests.advice.follow import find_command_words, follow, group, refuse
from tests.advice.sites import find_raised, find_sites, is_command
from tests.parallel.test_refused import REFUSED as REFUSED_MESHES
from tests.test_cli import INCONSISTENT
from tests.train.test_unused_settings import REFUSED as UNUSED

NAMES = re.compile(r"(?<![\w-])--([a-z][\w.-]*\w)")
SHORT = {"import", "help", "version", "markdown", "model.from", "local_dir"}
"""Flags that are no fields: of some commands, and of `hf download`."""


@pytest.fixture(scope="module")
def configs():
    """Every configuration that flags may change: recipes, and what commands take."""
    recipes = [load_recipe(name) for name in find_recipes() if "debugmodel" in name]
    return [*recipes, *(command.arguments() for command in COMMANDS if command.arguments is not None)]


@pytest.fixture(scope="module")
def paths(configs):
    """What each of them has by name: fields, and groups of fields."""
    return [{leaf.path for leaf in find_leaves(config)} | {*find_sections(config)} for config in configs]


@pytest.fixture(scope="module")
def known(paths):
    return SHORT.union(*paths)


def test_every_flag_that_advice_names_exists(known):
    wrong = []
    for site in find_sites():
        for text in site.texts:
            names = [name for name in NAMES.findall(text) if f"--{name}" + "{}" not in text and "{}" not in name]
            wrong += [f"{site.key}: --{name}" for name in names if not is_known(name, known)]
    assert not wrong, "\n".join(wrong)


def is_known(name, known):
    name = name.replace("-", "_")
    return name in known or (name.split(".")[0] in ("passes",) and name in {"passes.off", "passes.on", "passes.extra"})


def test_every_command_that_advice_names_exists():
    names = [command.name for command in COMMANDS]
    wrong = []
    for site in find_sites():
        for text in site.texts:
            for said in re.findall(r"(?:^|`|: |\()monograph ((?:[a-z][a-z-]*)(?: [a-z]+)?)", text):
                if not any(said == name or said.startswith(f"{name} ") or said.split()[0] == name for name in names):
                    wrong.append(f"{site.key}: monograph {said}")
    assert not wrong, "\n".join(wrong)


def find_fixed_commands():
    """Commands that are the same whatever was refused: (site, words)."""
    for site in find_sites():
        for text in site.texts:
            words = find_command_words(text) if "{}" not in text and is_command(text) else []
            if words and words[0].startswith("--") and not any(word.isupper() for word in words):
                yield pytest.param(words, id=f"{site.file}: {' '.join(words)}"[:90])


@pytest.mark.parametrize("words", list(find_fixed_commands()))
def test_the_words_of_advice_are_read_by_some_command(words, configs, paths):
    flags = [Override(flag.removeprefix("--").replace("-", "_"), tuple(values)) for flag, values in group(words)]
    if flags[0].path in ("passes.off", "passes.on") or ":" in " ".join(words):
        return  # read with the passes and classes of a run, below
    reasons = []
    for config, own in zip(configs, paths, strict=True):
        if flags[0].path not in own and any(flags[0].path in others for others in paths):
            continue
        try:
            apply_overrides(config, flags)
            return
        except ConfigError as error:
            reasons.append(str(error))
    raise AssertionError(f"{shlex.join(words)}: {min(reasons, key=len)}")


LINES = [
    *(f"train {line}" for line in INCONSISTENT),
    *(f"train {line}" for line in REFUSED_MESHES),
    *(f"train {recipe} {flag} {others}" for recipe, flag, others, *_ in UNUSED),
    "train llama3_debugmodel --training.stepz 5",
    "train llama3_debugmodel --debug.device gpu",
    "train llama3_debugmodel --training.steps five",
    "train llama3_debugmodel --training.steps",
    "train llama3_debugmodel --compile.mode grahp",
    "train llama3_debugmodel --training.compute_dtype bf16",
    "train llama3_debugmodel --job.description two words",
    "train llama3_debugmodel --ranks 3 --parallelism.tensor_parallel_degree 2",
    "train llama3_debugmodel --dataloader.validation_dataset builtin --validator.interval 5",
    "train llama3_debugmodel --lr_scheduler.warmup_steps 500",
    "train llama3_debugmodel --model.vocab_size 100",
    "train llama3_debugmodel --training.seq_len 100000",
    "train llama3_debugmodel --training.global_batch_size 7 --training.local_batch_size 2",
    "train llama3_debugmodel --profiler.start 1 --profiler.steps 5 --profiler.every 2",
    "train llama3_debugmodel --metrics.wandb",
    "train deepseek_v3_debugmodel --model.moe.router.top_k 99",
    "train deepseek_v3_debugmodel --model.moe.router.top_groups 9",
    "train deepseek_v3_debugmodel --model.moe.n_experts 7",
    "bench llama3_debugmodel --steps 0",
    "bench llama3_debugmodel --warmup -1",
    "inspect llama3_debugmodel",
    "inspect llama3_debugmodel --out x --ranks -1",
    "precompile llama3_debugmodel",
    "compare llama3_debugmodel llama3_debugmodel --tolerance -1",
]


@pytest.fixture(scope="module")
def first_answers():
    """What each line was answered, as far as it was tried."""
    return {}


@pytest.mark.parametrize("line", LINES)
def test_advice_that_is_a_command_works_when_it_is_followed(line, first_answers, monkeypatch, tmp_path):
    """Each time the refused line is changed as the error says; a line that is accepted in the end was helped."""
    monkeypatch.chdir(tmp_path)
    seen = []
    for number in range(5):
        error = refuse(line, monkeypatch)
        if number == 0:
            first_answers[line] = error
        if error is None:
            return
        changed = follow(line, error.what, error.do)
        if not changed or any(word.isupper() and len(word) > 2 for word in find_command_words(error.do)):
            return  # a sentence, or a command with a place for a name of the reader's own
        if "pip install" in error.do or ".txt" in line or "package.module" in error.do:
            return
        assert changed != line, f"{line}\n{error}"
        assert (error.what, line) not in seen, f"{line}\n{error}"
        seen.append((error.what, line))
        line = changed
    raise AssertionError(f"{line}\n{error}")


def test_lines_reach_the_advice_that_depends_on_what_was_written(first_answers, monkeypatch, tmp_path):
    """Advice with values in it, in files of settings: each is printed by one of the lines above."""
    monkeypatch.chdir(tmp_path)
    reached = set()
    for line in LINES:
        error = first_answers[line] if line in first_answers else refuse(line, monkeypatch)
        site = find_raised(error) if error is not None else None
        if site is not None:
            reached.add(site.key)
    checked = (
        "train/config.py",
        "models/config.py",
        "parallel/mesh.py",
        "parallel/fit.py",
        "train/lr_scheduler_config.py",
    )
    missing = [site.key for site in find_sites() if site.file in checked and site.varies and site.key not in reached]
    assert not missing, "\n".join(missing)


def test_flags_in_advice_are_split_as_the_command_line_splits_them():
    assert find_command_words("--a.b 1 or --c 2") == ["--a.b", "1"]
    assert find_command_words("did you mean --a.b (or --c)?") == ["--a.b"]
    assert find_command_words("raise the number") == []
    assert split_flags(["--a.b", "1"])[0].path == "a.b"

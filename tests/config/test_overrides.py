"""Every field can be set as `--section.field value`, and every mistake is answered with what would have worked."""

import shlex
from pathlib import Path

import pytest

from monograph.config.leaves import find_leaves
from monograph.config.overrides import apply_overrides, find_similar, split_flags
from monograph.config.text import format_words
from monograph.errors import ConfigError
from tests.config.toys import Color, ModelConfig, RopeConfig, RunConfig, StageConfig, make_run, triple


def override(line, config=None):
    return apply_overrides(config or make_run(), split_flags(shlex.split(line)))


def read(line, config=None):
    """The value a single flag leads to."""
    value = override(line, config)
    for part in shlex.split(line)[0][2:].partition("=")[0].split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("--training.steps 5", 5),
        ("--training.steps=5", 5),
        ("--training.steps 1_000", 1000),
        ("--training.steps -1", -1),
        ("--training.lr 3e-5", 3e-5),
        ("--training.lr 1", 1.0),
        ("--training.lr 1e308", 1e308),
        ("--training.name 'two words'", "two words"),
        ("--training.name=a=b", "a=b"),
        ("--training.name ''", ""),
        ("--training.name=--odd", "--odd"),
        ("--training.name '[not a list]'", "[not a list]"),
        ("--training.note text", "text"),
        ("--training.note None", None),
        ("--training.deterministic", True),
        ("--training.deterministic true", True),
        ("--training.deterministic True", True),
        ("--training.deterministic 1", True),
        ("--training.deterministic=false", False),
        ("--training.deterministic 0", False),
        ("--training.decay linear", "linear"),
        ("--training.sizes 1 2 3", [1, 2, 3]),
        ("--training.sizes '[1,2,3]'", [1, 2, 3]),
        ("--training.sizes=[]", []),
        ("--training.names a b", ("a", "b")),
        ("--training.names '[a, b]'", ("a", "b")),
        ("--training.names 'a, b.txt' c,d", ("a, b.txt", "c,d")),
        ("--training.sizes 1,2 3", [1, 2, 3]),
        ("--training.labels a,b c", ("a", "b", "c")),
        ("""--training.names '["a, b", "c"]'""", ("a, b", "c")),
        ("--training.nested '[[1, 2], [3]]'", [[1, 2], [3]]),
        ("--training.window 3 4", (3, 4)),
        ("--training.window '(3, 4)'", (3, 4)),
        ("--training.window None", None),
        ("--training.weights a 1 b 2.5", {"a": 1.0, "b": 2.5}),
        ("""--training.weights '{"a": 1}'""", {"a": 1.0}),
        ("--training.limit 3", 3.0),
        ("--training.limit auto", "auto"),
        ("--training.transform tests.config.toys:triple", triple),
        ("--training.folder /data/x", Path("/data/x")),
        ("--training.color BLUE", Color.BLUE),
        ("--training.switches true 0 no", [True, False, False]),
        ("--model.rope.factors 2 8", (2.0, 8.0)),
        ("--model.lora_rank 7", 7),
        ("--model.lora_rank none", None),
    ],
)
def test_a_flag_is_read_as_its_fields_type(line, value):
    found = read(line)
    assert found == value and type(found) is type(value)


def test_elements_are_read_as_the_lists_element_type():
    assert [type(item) for item in read("--model.rope.factors '[2, 8]'")] == [float, float]


def test_dashes_and_underscores_in_names_are_the_same():
    assert override("--model.lora-rank 7") == override("--model.lora_rank 7")


def test_fields_of_a_subclassed_config_are_flags_without_further_ado():
    assert override("--model.experts 16").model.experts == 16


def test_sections_in_a_list_are_set_by_their_number():
    config = make_run(stages=[StageConfig(), StageConfig()])
    assert [stage.first for stage in override("--stages.1.first 9", config).stages] == [0, 9]


def test_a_part_that_a_recipe_switched_on_can_be_switched_off():
    assert override("--validator None", make_run(validator=StageConfig())).validator is None


def test_overriding_changes_neither_the_original_nor_an_object_used_twice():
    rope = RopeConfig()
    config = RunConfig(model=ModelConfig(dim=2, rope=rope))
    changed = override("--model.rope.max_seq_len 9", config)
    assert (changed.model.rope.max_seq_len, rope.max_seq_len) == (9, 4096)


def test_every_value_can_be_typed_back_as_it_is_shown_in_examples():
    config = make_run()
    config.training.names = ("data/a,b.txt", "c")
    typed = [f"--{leaf.path} {words}" for leaf in find_leaves(config) if (words := format_words(leaf.value))]
    assert len(typed) > 15
    for line in typed:
        assert override(line, config) == config, line


@pytest.mark.parametrize(
    ("line", "what", "why", "do"),
    [
        ("--training.steps five", "--training.steps five", "a whole number", "--training.steps 100"),
        ("--training.steps 5.5", "--training.steps 5.5", "a whole number", "--training.steps 100"),
        ("--training.steps ''", "--training.steps ''", "a whole number", "--training.steps 100"),
        ("--training.steps", "has no value", "a whole number", "--training.steps 100"),
        ("--training.steps --training.lr 1", "--training.steps has no value", "a whole number", ""),
        ("--training.lr fast", "fast", "a number", "--training.lr 0.0003"),
        ("--training.lr inf", "inf", "inf is not finite", "--training.lr 0.0003"),
        ("--training.lr=-inf", "-inf", "-inf is not finite", "--training.lr 0.0003"),
        ("--training.lr nan", "nan", "nan is not finite", "--training.lr 0.0003"),
        ("--training.lr 1e400", "1e400", "inf is not finite", "--training.lr 0.0003"),
        ("--training.limit 1e400", "1e400", "a number or auto: inf is not finite", "--training.limit auto"),
        ("--training.weights a 1 b inf", "b inf", "inf is not finite", "--training.weights"),
        ("--training.weights '{\"a\": 1e400}'", "1e400", "inf is not finite", ""),
        ("--model.rope.factors 1 nan", "1 nan", "nan is not finite", "--model.rope.factors 1.0 4.0"),
        (f"--training.steps {1 << 63}", str(1 << 63), "64 bits", "--training.steps 100"),
        ("--training.deterministic maybe", "maybe", "true or false", "--training.deterministic false"),
        ("--training.decay liner", "liner", "one of: cosine, linear", "did you mean --training.decay linear?"),
        ("--training.limit atuo", "atuo", "a number or auto", "did you mean --training.limit auto?"),
        ("--training.sizes 1 x", "1 x", "a list of whole numbers", "--training.sizes 1 2"),
        ("--training.sizes '[1, [2]]'", "[1, [2]]", "a list of whole numbers", ""),
        ("--training.window 1 2 3", "1 2 3", "2 values", "--training.window 8 8"),
        ("--training.switches true 7", "true 7", "true/false values", ""),
        ("--training.color GREEN", "GREEN", "RED, BLUE", ""),
        ("--training.name two words", "two words", "takes one value", "--training.name 'two words'"),
        ("--training.transform no.such:thing", "no.such:thing", "No module named 'no'", ""),
        ("--training.transform tests.config.toys:tripel", "tripel", "defines no tripel", "tests.config.toys:triple"),
        ("--training.stepz 5", "--training.stepz 5", "no field", "did you mean --training.steps?"),
        ("--trainng.steps 5", "--trainng.steps 5", "no field", "did you mean --training.steps?"),
        ("--steps 5", "--steps 5", "no field steps", "did you mean --training.steps?"),
        ("--max_seq_len 5", "--max_seq_len 5", "no field", "did you mean --model.rope.max_seq_len?"),
        ("--model.max_seq_len 5", "--model.max_seq_len 5", "no field", "did you mean --model.rope.max_seq_len?"),
        ("--training.steps.more 5", "--training.steps.more 5", "no field", "--training.steps"),
        ("--qqq.zzz 5", "--qqq.zzz 5", "no field qqq.zzz", "sections: model"),
        ("--training 5", "--training 5", "a section, not a value", "--training.steps"),
        ("--training.steps 5 --training.steps 6", "given twice", "only one", "remove one"),
        ("--training.seq-len 1 --training.seq_len 2", "seq_len", "", ""),
        ("training.steps=5", "not a flag", "--section.field value", "did you mean --training.steps 5?"),
        ("word", "'word' is not a flag", "--section.field value", ""),
    ],
)
def test_a_mistake_is_answered_with_what_would_have_worked(line, what, why, do):
    with pytest.raises(ConfigError) as caught:
        override(line)
    error = caught.value
    assert what in error.what and why in error.why and do in error.do, str(error)


def test_similar_names_are_few_and_about_as_close_as_the_best():
    paths = ["training.steps", "profiler.steps", "model.dim", "training.seq_len"]
    assert find_similar("steps", paths) == ["training.steps", "profiler.steps"]
    assert find_similar("xyzzy", paths) == []

"""Every field of every recipe does something: each is changed, and something that can be seen changes or refuses it.

tests/train/field_flips.py has the table: field, new value, where to look.
"""

import ast
import functools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from monograph.commands.request import reset_and_check
from monograph.config.json_form import dump_json
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.errors import ConfigError, MonographError
from monograph.recipes.catalog import find_recipes, load_recipe
from tests.kit.tiny import tiny
from tests.train.field_effects import see_graph, see_run, see_update
from tests.train.field_flips import METADATA, SHOWN_BY, all_flips

ROOT = Path(__file__).parents[2]
_HELD = tempfile.TemporaryDirectory(prefix="monograph-fields-")
FOLDER = Path(_HELD.name)
"""Data that flips read; gone when the tests end."""
FLIPS = all_flips(FOLDER)


def make_config(flip, folder):
    base = {"parallelism.fsdp": "graph"} if flip.see is see_update else {}
    if flip.see is see_update and flip.model == "deepseek_v3" and flip.path != "model.n_dense_layers":
        base |= {"model.n_layers": 2}
    if flip.see is see_graph and flip.model == "llama3":
        base = {"model.n_layers": 1}
    changes = {**base, **flip.given}
    degrees = {path.partition(".")[2]: changes.pop(path) for path in list(changes) if path.startswith("parallelism.")}
    return tiny(flip.model, folder, changes, **degrees)


@functools.cache
def observe_base(see, text, config):
    """What an unchanged configuration does; many flips start from the same."""
    return see(config.value)


@dataclass(frozen=True)
class Unhashed:
    """A config as an argument that a cache does not look at."""

    value: Any = field(compare=False)


def observe(flip, config):
    try:
        return flip.see(config)
    except MonographError as error:
        return f"refused: {error}"


@pytest.mark.parametrize(
    "flip",
    [pytest.param(flip, marks=pytest.mark.long if flip.is_long else ()) for flip in FLIPS],
    ids=lambda flip: flip.path,
)
def test_a_changed_field_changes_what_can_be_seen_or_is_refused(flip, tmp_path):
    folder = tmp_path if flip.see is see_run else FOLDER
    base = make_config(flip, folder)
    value = str(folder / flip.value) if flip.path == "job.dump_folder" else flip.value
    assert dict((leaf.path, leaf.value) for leaf in find_leaves(base))[flip.path] != value, "this is no other value"
    changed = replace_leaf(base, flip.path, value)
    if flip.is_refused:
        with pytest.raises(ConfigError, match=flip.path.rpartition(".")[2]):
            reset_and_check(base, changed, [flip.path])
        return
    changed = reset_and_check(base, changed, [flip.path])
    before = flip.see(base) if flip.see is see_run else observe_base(flip.see, dump_json(base), Unhashed(base))
    if flip.see is see_run and flip.path != "job.dump_folder":
        changed = replace_leaf(changed, "job.dump_folder", str(tmp_path / "other" / "run"))
    assert observe(flip, changed) != before, f"{flip.path} = {value!r} has no effect"


def test_every_field_of_every_recipe_is_flipped_or_has_a_reason_not_to_be():
    fields = {leaf.path for name in find_recipes() for leaf in find_leaves(load_recipe(name))}
    flipped = [flip.path for flip in FLIPS]
    assert len(flipped) == len(set(flipped))
    covered = {*flipped, *METADATA, *SHOWN_BY}
    assert len(covered) == len(flipped) + len(METADATA) + len(SHOWN_BY), "a field is listed twice"
    assert (sorted(fields - covered), sorted(covered - fields)) == ([], [])


@pytest.mark.parametrize("reference", sorted(set(SHOWN_BY.values())))
def test_every_test_that_shows_an_effect_exists(reference):
    file, _, name = reference.partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_a_field_that_nothing_reads_is_found():
    """As if weight decay were ignored."""
    flip = next(flip for flip in FLIPS if flip.path == "optimizer.weight_decay")
    base = make_config(flip, FOLDER)

    def see_without_decay(config):
        return see_update(replace_leaf(config, flip.path, base.optimizer.weight_decay))

    assert see_without_decay(replace_leaf(base, flip.path, flip.value)) == see_update(base)

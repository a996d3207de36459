"""Mistakes that passes could make are found: every broken copy of a real step is refused."""

import random
from typing import NamedTuple

import pytest

from monograph.graph.changes import find_changes, take_snapshot
from monograph.graph.verify import GraphError, check_graph
from tests.graph.captures import SPREAD, capture_recipe, copy_graph
from tests.graph.mutations_of_transfers import mutation as of_transfers
from tests.graph.mutations_of_values import mutation as of_values

STEPS = {
    "qwen_moe": {"recipe": "qwen3_debugmodel_moe"},
    "llama_bf16": {"recipe": "llama3_debugmodel", "compute": "bfloat16"},
}


@pytest.fixture(scope="module")
def steps():
    return {name: capture_recipe(mesh=SPREAD, **options) for name, options in STEPS.items()}


class Mutant(NamedTuple):
    """A broken step, and what the checker said about it; nothing when it survived."""

    name: str
    text: str
    found_by_change: str
    """When only what changed was looked at."""
    refusal: str


def break_step(mutate, name, graph, facts):
    """One mutant of a step, always the same one; None where the step has no place for the mistake."""
    refusals = []
    for only_changes in (True, False):
        mutant = copy_graph(graph)
        before = take_snapshot(mutant)
        if mutate(mutant, facts, random.Random(f"{mutate.__name__} {name}")) is False:
            return None
        refusals.append(refuse(mutant, facts, find_changes(before, take_snapshot(mutant)) if only_changes else None))
    return Mutant(f"{mutate.__name__} of {name}", mutant.text(folded=False), *refusals)


def refuse(mutant, facts, changes):
    """What the checker says."""
    try:
        check_graph(mutant, facts, changes)
    except GraphError as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def mutants(steps):
    """Every mutation of every step that has a place for it."""
    made = [break_step(mutate, name, *steps[name]) for mutate in (*of_transfers, *of_values) for name in steps]
    return [each for each in made if each is not None]


def test_the_unbroken_steps_and_their_copies_are_accepted(steps):
    for graph, facts in steps.values():
        check_graph(graph, facts)
        check_graph(copy_graph(graph), facts)


def test_at_least_fifty_mutants_of_many_kinds_are_all_refused(mutants):
    survivors = [each.name for each in mutants if not each.refusal]
    print(f"{len(mutants) - len(survivors)} of {len(mutants)} mutants refused; survivors: {survivors}")
    assert len(mutants) >= 50
    assert not survivors


def test_a_look_at_what_changed_finds_the_same_mistakes(mutants):
    assert [each.name for each in mutants if each.found_by_change != each.refusal] == []


def test_every_mutant_differs_from_the_step_it_was_made_of(steps, mutants):
    originals = {graph.text(folded=False) for graph, _ in steps.values()}
    assert [each.name for each in mutants if each.text in originals] == []


def test_a_refusal_says_what_why_and_what_to_do(mutants):
    for each in mutants:
        assert "\nwhy: " in each.refusal, each.name
        assert "\ndo:  " in each.refusal, each.name

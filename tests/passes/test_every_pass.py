"""What holds for every pass, whatever it does: given for free to whoever writes a new one."""

import copy
import functools
from pathlib import Path

import pytest

from monograph.parallel.mesh import Mesh
from monograph.passes.check import run_again
from monograph.passes.config import PassesConfig
from monograph.passes.extra import find_docstring_problem
from monograph.passes.order import ORDER
from monograph.passes.runner import build_passes, run_passes
from tests.kit.pipelines import ASKED, capture_small, compiles

MESH = Mesh(dp_shard=2, ep=2)
PASSES = {each.name(): each for each in build_passes(ASKED)}
QUICK = [name for name in ORDER if not compiles(name)]
"""Compiling takes a minute; those passes have tests of their own for the same promises."""
OVERLAPPED = {"training.local_batch_size": 4, "compile.expert_overlap.strategy": "graph"}
"""Under which the passes that hide exchanges have something to do."""


TWO_BLOCKS = {"model.n_layers": 2, "optimizer.implementation": "single_pass"}
"""A dense one and one with experts, and an optimizer that every pass can work with."""


@functools.cache
def walk(strategy):
    """Pass by pass through the whole order, on one capture: name -> its graph's text after one run and after two."""
    changes = {**TWO_BLOCKS, **OVERLAPPED, "compile.expert_overlap.strategy": strategy}
    graph, facts = capture_small("deepseek_v3", MESH, **changes)
    texts = {}
    for name in QUICK:
        if PASSES[name].skip(facts):
            continue
        PASSES[name].run(graph, facts)
        texts[name] = run_again(PASSES[name], graph, facts)
        if name == "merge_chunks":
            break  # what comes after it is shown by the other strategy
    return texts


def test_the_order_names_every_pass_by_its_own_name():
    assert list(PASSES) == list(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_pass_says_what_it_does_shows_it_and_says_why(name):
    assert find_docstring_problem(type(PASSES[name])) == ""


@pytest.mark.parametrize("name", ORDER)
def test_a_pass_has_a_test_file_of_its_own(name):
    assert (Path(__file__).parent / f"test_{name}.py").exists()


@pytest.mark.parametrize("name", QUICK)
def test_a_pass_leaves_a_graph_that_keeps_the_rules_and_running_it_twice_changes_nothing_more(name):
    texts = walk("trace" if name == "merge_chunks" else "graph")
    assert name in texts, "it has something to do here"
    assert texts[name].once == texts[name].twice


def test_all_passes_together_give_the_same_text_on_two_ranks_and_leave_the_options_alone():
    before = copy.deepcopy(ASKED)
    texts = set()
    for rank in (0, 1):
        graph, facts = capture_small("deepseek_v3", MESH, rank, **TWO_BLOCKS)
        run_passes(graph, [PASSES[name] for name in QUICK], facts, is_measured=False)
        texts.add(graph.text())
    assert len(texts) == 1
    assert before == ASKED


def test_exact_numerics_run_nothing_that_changes_bits():
    _, facts = capture_small("llama3", Mesh(), 0)
    for each in build_passes(PassesConfig()):
        assert each.bitwise or each.off or each.skip(facts), each.name()


def test_fast_numerics_add_the_passes_that_say_so_and_nothing_else():
    exact, fast = (
        {each.name() for each in build_passes(PassesConfig(), kind) if not each.off} for kind in ("exact", "fast")
    )
    assert fast - exact == {name for name, entry in ORDER.items() if entry.default == "fast"}
    assert exact - fast == set()

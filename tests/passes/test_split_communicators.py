"""split_communicators: counts leave the road of the rows."""

import re

from monograph.axes import Axis
from monograph.parallel.mesh import Mesh
from tests.kit.pipelines import capture_small, make_pass


def test_counts_travel_beside_the_rows_and_nothing_else_changes():
    graph, facts = capture_small("qwen3_moe", Mesh(dp_shard=2, ep=2))
    before = graph.text(folded=False).splitlines()
    assert facts.degree(Axis.EP) == 2
    assert make_pass("split_communicators").run(graph, facts) == "2 collectives moved to their own communicator"
    after = graph.text(folded=False).splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2
    for old, new in changed:
        assert "count_all_to_all" in old and old.replace(", ep)", ", ep_counts)") == new
    assert any(re.search(r"all_to_all.*, ep\).*token_all_to_all", line) for line in after)


def test_with_chunks_tokens_are_dispatched_over_a_communicator_of_their_own():
    overlap = {"strategy": "trace", "modules": "layers.*.moe"}
    chunked = {f"compile.expert_overlap.{name}": value for name, value in overlap.items()}
    chunked["training.local_batch_size"] = 2
    graph, facts = capture_small("qwen3_moe", Mesh(dp_shard=2, ep=2), **chunked)
    make_pass("split_communicators").run(graph, facts)
    lines = [
        line
        for line in graph.text(folded=False).splitlines()
        if "all_to_all_single(" in line and "token_all_to_all" in line
    ]
    assert len(lines) >= 8, "two chunks, there and back, forward and backward"
    for line in lines:
        assert (", ep_dispatch)" in line) == ("in dispatch" in line), line
        assert (", ep)" in line) == ("in combine" in line), line

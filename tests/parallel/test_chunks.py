"""What chunking means, and what it refuses: before a second is spent on a model."""

import pytest
import torch

from monograph.errors import ConfigError
from monograph.parallel.chunks import add_in_reverse, cut
from tests.execute.updates import differences, make_updates, one_rank, small

OVERLAP = "compile.expert_overlap"
EAGER = {"parallelism.fsdp": "graph", "training.local_batch_size": 4}
IN_ORDER = {"passes.off": ("overlap_experts",)}


def chunked(model, folder, changes=None, **overlap):
    options = {f"{OVERLAP}.{name}": value for name, value in {"strategy": "trace", **overlap}.items()}
    return small(model, folder, {**EAGER, **options, **(changes or {})})


@pytest.mark.parametrize(
    ("overlap", "changes", "words"),
    [
        ({"num_chunks": 1}, {}, "num_chunks is 1"),
        ({"modules": "head"}, {}, "only blocks and the experts"),
        ({"modules": "layers.*.attention"}, {}, "only blocks and the experts"),
        ({"strategy": "graph", "chunk_dim": "seq"}, {"compile.mode": "graph"}, "covers attention"),
        ({"chunk_dim": "seq"}, {"parallelism.tensor_parallel_degree": 2}, "tensor_parallel_degree is 2"),
        ({"chunk_dim": "seq"}, {"parallelism.context_parallel_degree": 2}, "context_parallel_degree is 2"),
        ({"num_chunks": 3}, {}, "--training.local_batch_size 3"),
        ({"modules": "layers.*.moe", "chunk_dim": "seq", "num_chunks": 5}, {}, "--training.seq_len 30"),
        ({"strategy": "graph"}, {}, "needs a captured one"),
        ({"strategy": "graph", "num_chunks": 4}, {"compile.mode": "graph", **IN_ORDER}, "a chunk would have 1"),
        ({}, {"compile.mode": "graph"}, "there is no all_to_all to overlap"),
        (
            {"strategy": "graph"},
            {"compile.mode": "graph", "passes.off": ("overlap_experts", "chunk_experts")},
            "passes.off has chunk_experts",
        ),
        ({}, {"parallelism.fsdp": "fsdp2"}, "FSDP2's hooks cannot"),
        ({}, {"parallelism.fsdp": "auto", "compile.mode": "layer"}, "with mode layer"),
    ],
)
def test_chunks_that_cannot_be_made_are_refused_with_what_to_write_instead(tmp_path, overlap, changes, words):
    with pytest.raises(ConfigError) as refused:
        chunked("qwen3_moe", tmp_path, changes, **overlap)
    assert words in str(refused.value)


def test_a_model_without_experts_has_nothing_to_overlap(tmp_path):
    with pytest.raises(ConfigError, match="no experts"):
        chunked("llama3", tmp_path, {"training.local_batch_size": 4})


def test_a_pattern_that_no_block_with_experts_matches_is_refused_with_those_that_do(tmp_path):
    config = chunked("deepseek_v3", tmp_path, modules="layers.0")
    with one_rank(config) as groups, pytest.raises(ConfigError, match=r"layers\.1, layers\.2"):
        make_updates(config, groups, routings=((),))


def test_parts_are_equal_contiguous_and_views_where_they_can_be():
    whole = torch.arange(24.0).view(4, 3, 2)
    first, second = cut(whole, 0, 2)
    assert first.shape == second.shape == (2, 3, 2)
    assert first.data_ptr() == whole.data_ptr()
    assert all(part.is_contiguous() for part in cut(whole, 1, 3))


def test_gradients_are_added_from_the_last_chunk_to_the_first():
    values = [torch.tensor(value) for value in (1.0, 2.0**-24, 2.0**-24, 2.0**-24)]
    assert add_in_reverse(values).item() != sum(values).item()
    assert add_in_reverse(values).item() == ((values[3] + values[2]) + values[1] + values[0]).item()


DOCUMENTS = {"model.mask": "document"}


@pytest.mark.parametrize(
    ("changes", "overlap"),
    [
        ({}, {"grad_sum": "before_reduce"}),
        ({}, {"grad_sum": "after_reduce"}),
        ({}, {"chunk_dim": "seq"}),
        (DOCUMENTS, {"chunk_dim": "seq", "num_chunks": 4}),
    ],
)
def test_chunks_change_nothing_but_the_rounding(tmp_path, changes, overlap):
    """Of whole blocks: along the sequence, a chunk sees the keys of those before it."""
    whole = small("deepseek_v3", tmp_path, EAGER | changes)
    parts = chunked("deepseek_v3", tmp_path, changes, **overlap)
    with one_rank(whole) as groups:
        one, other = (make_updates(config, groups, routings=((), (0,))) for config in (whole, parts))
    for left, right in zip(one, other, strict=True):
        assert left.loss == pytest.approx(right.loss, rel=1e-6)
        assert left.load == right.load
    assert differences(one, other), "a sum over chunks is rounded in another order"

"""Stages as CUDA graphs: which updates are recorded, and why others are not; recording itself needs a GPU."""

from types import SimpleNamespace

import pytest
import torch

from monograph.errors import ConfigError
from monograph.execute.cudagraph import CudaGraphRecorder
from monograph.execute.pipeline.recorded import MOST_RECORDINGS, accepts, find_computed
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.build import build_schedule
from tests.kit.pipelines import capture_small

CPU = torch.device("cpu")


def test_what_is_recorded_are_the_actions_that_compute_in_the_order_of_the_schedule():
    schedule = build_schedule("zero_bubble", ranks=2, virtual_stages=1, micro_batches=3)
    found = [str(part) for part in find_computed(schedule, 1)]
    assert found == [str(action) for action in schedule.actions[1] if not action.is_transfer]
    assert sorted(found) == sorted(f"1{kind}{number}" for kind in "FIW" for number in range(3))


def test_an_update_with_more_actions_than_are_recorded_runs_op_by_op_or_is_refused():
    schedule = SimpleNamespace(actions=build_schedule("gpipe", ranks=1, virtual_stages=1, micro_batches=600).actions)
    assert MOST_RECORDINGS < 2 * 600 and not accepts(CudaGraphRecorder(CPU), [], schedule, 0)
    with pytest.raises(ConfigError, match="1200 actions") as refused:
        accepts(CudaGraphRecorder(CPU, is_required=True), [], schedule, 0)
    assert refused.value.do


def test_a_stage_that_cannot_be_recorded_is_refused_with_its_nodes_where_that_is_required():
    graph, _ = capture_small("llama3", Mesh())
    schedule = build_schedule("1f1b", ranks=2, virtual_stages=1, micro_batches=2)
    assert not accepts(CudaGraphRecorder(CPU), [graph], schedule, 0)
    with pytest.raises(ConfigError, match=r"nodes? of the step cannot be recorded"):
        accepts(CudaGraphRecorder(CPU, is_required=True), [graph], schedule, 0)

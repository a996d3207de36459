"""Memory that runs out ends a command in words: what held it, by kind, which node wanted more, and what helps."""

import pytest
import torch

from monograph.cli import main
from monograph.execute.failed_node import failures_located
from monograph.run import train
from monograph.train.adamw import AdamW
from monograph.train.out_of_memory import OutOfMemory, count_held, find_allocation_failure, memory_explained
from tests.execute.test_failed_node import make_graph
from tests.kit.runs import tiny_run

SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 1 MiB is free"


def test_an_error_of_cleaning_up_does_not_hide_that_memory_ran_out():
    first = torch.OutOfMemoryError(SAID)
    first.add_note("in layers.1.ffn, backward: aten.mm.default")

    def fail():
        try:
            raise first
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    holders = {"parameters": lambda: [torch.zeros(1 << 20)]}
    with (
        pytest.raises(OutOfMemory, match=r"no room for another 2\.00 GiB, in layers\.1\.ffn, backward") as said,
        memory_explained(torch.device("cpu"), holders, do="less"),
    ):
        fail()
    assert said.value.why == "its memory holds parameters 4.00 MiB" and said.value.do == "less"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "Failed to CUDA calloc async 8 bytes",
        "CUDA error: out of memory",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
    ],
)
def test_allocators_without_an_error_of_their_own_are_known_by_what_they_say(text):
    assert find_allocation_failure(RuntimeError(text)) is not None
    assert find_allocation_failure(ValueError(text)) is None
    assert find_allocation_failure(RuntimeError("the size of tensor a must match")) is None


def test_memory_that_tensors_share_counts_once():
    whole = torch.zeros(64)
    assert count_held({"a": lambda: [whole, whole[:8]], "b": lambda: [whole[8:], torch.zeros(2)]}) == {"a": 256, "b": 8}


def test_training_that_runs_out_of_memory_says_what_held_it_and_what_helps(tmp_path, capsys, monkeypatch):
    def fail(self, *args, **kwargs):
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(AdamW, "step", fail)
    with pytest.raises(OutOfMemory, match=r"cpu has no room for another 2\.00 GiB") as said:
        train(tiny_run(tmp_path, {"compile.mode": "graph"}))
    for kind in ("parameters", "gradients", "optimizer"):
        assert f"{kind} " in said.value.why
    assert "--activation_checkpoint.mode full" in said.value.do and "monograph plan" in said.value.do


def test_bench_says_in_words_that_a_batch_is_too_large_for_the_memory(capsys):
    words = ["tests.kit.runs:tiny_dense", "--modes", "exact", "--training.local_batch_size", str(1 << 34)]
    assert main(["bench", *words, "--steps", "1"]) == 1
    said = capsys.readouterr().err
    assert "no room for" in said and "Traceback" not in said


@pytest.mark.parametrize("command", ["verify", "bisect"])
def test_comparing_two_steps_says_in_words_that_they_do_not_fit(command, monkeypatch, capsys, tmp_path):
    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("monograph.bisect.run.find_differences", fail)
    monkeypatch.setattr("monograph.verify.run.Reference", fail)
    words = ["llama3_debugmodel", "--model.n_layers", "1", "--model.dim", "16", "--training.seq_len", "32"]
    assert main([command, *words] if command == "verify" else [command, " ".join(words)]) == 1
    said = capsys.readouterr().err
    assert "no room for another 2.00 GiB" in said and "--model.n_layers" in said and "Traceback" not in said


def test_a_step_that_is_to_be_recorded_names_the_node_that_failed():
    graph, _ = make_graph()
    graph.module.recompile()
    with pytest.raises(RuntimeError) as failed, failures_located(graph.module.graph):
        (lambda: graph.module(torch.ones(3, 4), torch.ones(4, 5)))()
    assert failed.value.__notes__ == ["in layers.1.ffn, backward: aten.mm.default"]

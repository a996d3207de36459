"""What verify concludes from numbers: where a difference begins, whatever else it spoils on its way."""

import json
from types import SimpleNamespace

import pytest
import torch

from examples.own_optimizer import Lion
from monograph.parallel.mesh import Mesh
from monograph.verify import trace
from monograph.verify.compare import Differences, ModuleRow, compare, count_rerouted, largest_difference, plan_order
from monograph.verify.coverage import find_uncovered
from monograph.verify.show import print_verdict, write_verdict
from monograph.verify.trace import RankMismatch, StepTrace
from monograph.verify.verdict import Verdict, find_blame
from tests.kit.ranks import pool
from tests.kit.tiny import tiny
from tests.verify.on_ranks import command, command_with_bug

ORDER = ["embedding", "layers.0.norm", "layers.0.moe.router.gate", "layers.0.moe.router", "layers.0.moe.experts"]
ORDER += ["layers.0.moe", "layers.0", "head.norm", "head.output"]
WRONG = 1e-3


def make(mismatches=(), loss=0.0, grad_norm=0.0, **rows):
    """Differences that are zero but where said: layers_0_moe={"forward": 1.0}."""
    found = {
        path: ModuleRow(path=path, backward=0.0 if path in ("embedding", "layers.0.moe", "layers.0") else None)
        for path in ORDER
    }
    for name, values in rows.items():
        path = next(path for path in ORDER if path.replace(".", "_") == name)
        for kind, value in values.items():
            setattr(found[path], kind, value)
    return Differences(rows=found, mismatches=list(mismatches), loss=loss, grad_norm=grad_norm)


def test_state_that_an_optimizer_has_on_no_rank_is_left_out_and_is_no_error(monkeypatch):
    slots = [SimpleNamespace(name="held"), SimpleNamespace(name="empty")]
    table = SimpleNamespace(gather_full=lambda slot, shards: torch.cat([*shards.values()]))
    monkeypatch.setattr(trace, "_agree", lambda slot, shards: True)
    whole = trace._join(slots, [{"held": torch.ones(1)}, {"held": torch.zeros(1)}], table, "state", [])
    assert list(whole) == ["held"] and whole["held"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("found", "blame"),
    [
        (make(), ""),
        (make(embedding={"start": WRONG, "forward": WRONG}), "embedding: its starting values differ"),
        (make(layers_0_norm={"forward": WRONG}, layers_0={"forward": 1.0}, loss=1.0), "layers.0.norm: its output"),
        (make(layers_0_moe_router={"routing": 3}, layers_0_moe={"forward": 1.0}), "layers.0.moe.router: 3 tokens"),
        (make(loss=WRONG, head_output={"gradient": 1.0}), "loss: it differs"),
        (make(layers_0={"backward": WRONG}, embedding={"gradient": 1.0}), "head: the gradient it passes back"),
        (make(embedding={"backward": WRONG, "gradient": 1.0}), "layers.0.moe: the gradient it passes back"),
        (make(layers_0_moe_experts={"gradient": WRONG}, embedding={"backward": 1.0}), "layers.0.moe.experts: its gra"),
        (make(head_norm={"gradient": 1.0}, layers_0={"backward": 1.0}), "head.norm: its gradient"),
        (make(embedding={"gradient": WRONG}, grad_norm=WRONG), "embedding: its gradient"),
        (make(grad_norm=WRONG, embedding={"updated": 1.0}), "grad_norm: it differs"),
        (make(layers_0_moe_router={"updated": WRONG}), "layers.0.moe.router: its update"),
        (make(mismatches=[RankMismatch(name="loss", kind="loss")]), "loss: ranks disagree on it"),
        (
            make(mismatches=[RankMismatch(name="head.norm.weight", kind="gradient")]),
            "head.norm.weight: ranks disagree on its grad",
        ),
    ],
)
def test_blame_falls_on_the_first_thing_computed_wrong(found, blame):
    said = find_blame(found, 1e-5)
    assert said.startswith(blame) and bool(said) == bool(blame), said


def test_a_gradient_that_ranks_disagree_on_hints_at_a_missing_sum():
    found = make(head_norm={"gradient": 1.0}, mismatches=[RankMismatch(name="head.norm.weight", kind="gradient")])
    assert find_blame(found, 1e-5).endswith("and ranks disagree on it")


def test_the_first_step_that_differs_is_blamed_and_the_table_keeps_the_worst():
    verdict = Verdict(tolerance=1e-5)
    verdict.add(1, make(embedding={"forward": 1e-6}))
    assert verdict.is_equal and verdict.blame == ""
    verdict.add(2, make(grad_norm=1e-2, embedding={"updated": 1e-3}))
    verdict.add(3, make(embedding={"start": 1.0, "forward": 1.0}))
    assert (verdict.step, verdict.blame) == (2, "grad_norm: it differs by 1.0e-02")
    assert not verdict.is_equal and verdict.all.rows["embedding"].forward == 1.0


def make_trace(scale=1.0):
    generator = torch.Generator().manual_seed(0)
    draw = {name: torch.randn(4, 3, generator=generator) * scale for name in ("a.weight", "layers.0.b.weight")}
    outputs = {"a": torch.ones(1, 2, 3), "layers.0": torch.ones(1, 2, 3)}
    choices = {"layers.0.moe.router": torch.tensor([[[0, 1], [2, 3]]])}
    return StepTrace(outputs=outputs, choices=choices, before=draw, gradients=dict(draw), after=dict(draw))


def test_modules_stand_in_forward_order_before_the_module_they_are_part_of():
    assert plan_order(make_trace()) == ["a", "layers.0.moe.router", "layers.0.b", "layers.0"]


def test_what_is_missing_misshapen_or_not_a_number_differs_infinitely():
    ones = torch.ones(2, 2)
    assert largest_difference(None, ones) == largest_difference(torch.ones(2, 3), ones) == float("inf")
    assert largest_difference(torch.full((2, 2), float("nan")), ones) == float("inf")
    assert largest_difference(ones, torch.zeros(2, 2)) == float("inf")
    assert largest_difference(ones * 1.5, ones) == 0.5
    assert largest_difference(torch.zeros(0), torch.zeros(0)) == 0.0


def test_a_gradient_of_nothing_but_rounding_is_equal_until_it_becomes_visible():
    ours, theirs = make_trace(), make_trace()
    ours.gradients["layers.0.b.weight"] = torch.full((4, 3), 1e-9)
    theirs.gradients["layers.0.b.weight"] = torch.full((4, 3), -2e-9)
    assert compare(ours, theirs).rows["layers.0.b"].gradient == 0.0
    ours.gradients["layers.0.b.weight"] = torch.full((4, 3), 1e-3)
    assert compare(ours, theirs).rows["layers.0.b"].gradient > 1


def test_digits_that_a_softmax_cancels_are_rounding_and_a_wrong_gradient_of_that_size_is_not():
    """Sizes of a run of the guide on a model of one's own, where queries have gradients of 7e-8."""
    ours, theirs = make_trace(), make_trace()
    for step in (ours, theirs):
        step.output_gradients |= {"a": torch.full((1, 2, 3), 1.4e-3), "layers.0": torch.full((1, 2, 3), 7.3e-8)}
    ours.output_gradients["layers.0"] = theirs.output_gradients["layers.0"] + 1.3e-12
    assert compare(ours, theirs).rows["layers.0"].backward == 0.0
    ours.output_gradients["layers.0"] = theirs.output_gradients["layers.0"] * 1.001
    assert compare(ours, theirs).rows["layers.0"].backward > 5e-4
    for step in (ours, theirs):
        step.output_gradients["a"] = torch.full((1, 2, 3), float("inf"))
    assert compare(ours, theirs).rows["layers.0"].backward > 5e-4, "what is infinite hides nothing else"


def test_the_order_of_a_tokens_experts_does_not_matter_but_their_set_does():
    theirs = torch.tensor([[[0, 1], [2, 3], [4, 5]]])
    assert count_rerouted(torch.tensor([[[1, 0], [3, 2], [4, 5]]]), theirs) == 0
    assert count_rerouted(torch.tensor([[[1, 0], [3, 4], [4, 6]]]), theirs) == 2
    assert count_rerouted(torch.tensor([[[1, 0]]]), theirs) == 3


def test_the_verdict_is_shown_as_a_table_and_kept_as_plain_json(tmp_path, capsys):
    verdict = Verdict(tolerance=1e-5)
    verdict.add(1, make(layers_0={"forward": float("inf")}, mismatches=[RankMismatch(name="loss", kind="loss")]))
    print_verdict(verdict, Mesh(dp_shard=2))
    shown = capsys.readouterr().out
    assert "different, first in step 1 at layers.0: its output differs by inf" in shown.replace("\n", " ")
    assert "loss: ranks disagree on it" in shown and all(path in shown for path in ORDER)
    write_verdict(verdict, tmp_path / "verify.json")
    kept = json.loads((tmp_path / "verify.json").read_text(), parse_constant=pytest.fail)
    assert kept["is_equal"] is False and kept["blame"].startswith("layers.0: its output")
    assert [row["path"] for row in kept["modules"]] == ORDER


def test_the_commands_exit_code_says_on_every_rank_whether_all_is_equal(tmp_path):
    config = tiny("deepseek_v3", tmp_path, tp=2)
    assert pool.run(2, command, config) == [0, 0]
    assert json.loads((tmp_path / "run" / "verify.json").read_text())["is_equal"] is True
    assert pool.run(2, command_with_bug, config, "norm_counted_twice") == [1, 1]
    kept = json.loads((tmp_path / "run" / "verify.json").read_text())
    assert kept["blame"].startswith("grad_norm") and kept["is_equal"] is False


def test_the_verdict_shows_what_the_step_promises(tmp_path, capsys):
    verdict = Verdict(tolerance=1e-5, numerics="bitwise identical to eager")
    print_verdict(verdict, Mesh())
    assert "numerics promised: bitwise identical to eager" in capsys.readouterr().out
    write_verdict(verdict, tmp_path / "verify.json")
    assert json.loads((tmp_path / "verify.json").read_text())["numerics"] == "bitwise identical to eager"


@pytest.mark.parametrize(
    ("changes", "device", "said"),
    [
        ({"validator.interval": 5}, "cpu", []),
        ({}, "cpu", ["evaluation: this run has none"]),
        ({"training.compute_dtype": "bfloat16"}, "cuda", ["compute_dtype bfloat16 and the kernels that", "evaluation"]),
        ({"optimizer.state_dtype": "bfloat16"}, "cpu", ["optimizer.state_dtype bfloat16: its state", "evaluation"]),
        ({"compile.mode": "layer", "validator.interval": 5}, "cpu", ["what modules put out"]),
        ({"compile.mode": "graph", "validator.interval": 5}, "cuda", ["the recorded CUDA graph"]),
        ({"checkpoint.load": "latest", "validator.interval": 5}, "cpu", ["checkpoint.load latest"]),
        ({"optimizer": Lion.Config(), "validator.interval": 5}, "cpu", ["the rule of optimizer Lion.Config"]),
    ],
)
def test_a_verdict_says_what_of_the_run_was_not_compared(changes, device, said, tmp_path, capsys):
    found = find_uncovered(tiny("llama3", tmp_path, changes), device)
    assert len(found) == len(said) and all(words in line for words, line in zip(said, found, strict=True)), found
    verdict = Verdict(tolerance=1e-5, uncovered=found)
    print_verdict(verdict, Mesh())
    assert capsys.readouterr().out.count("not compared: ") == len(found)
    write_verdict(verdict, tmp_path / "verify.json")
    assert json.loads((tmp_path / "verify.json").read_text())["not_compared"] == list(found)


def test_ranks_that_share_a_gpu_have_no_recording_to_compare(tmp_path):
    config = tiny("llama3", tmp_path, {"compile.mode": "graph", "validator.interval": 5})
    assert find_uncovered(config, "cuda") and not find_uncovered(config, "cuda", copies_through_host=True)

"""A step cut in two: autograd joins the halves, so the loss may be changed in between."""

from itertools import combinations
from random import Random

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.execute.graph_step import GraphStep
from monograph.execute.partition import SplitProgram
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.memory.min_cut import cut_flow_network, plan_min_cut
from monograph.passes.memory.saved import count_saved_bytes, find_crossing
from monograph.run import build_step
from tests.execute.updates import CPU, normalizers_of, small
from tests.passes.kit import capture_small, make_pass
from tests.passes.written import BACKWARD, ByHand


def make_gradients(folder, partition, scale=1.0):
    """Loss and gradients of one batch; the loss of a cut step is scaled before its gradient is taken."""
    changes = {"compile.mode": "graph", "parallelism.fsdp": "graph", "compile.partition": partition}
    config = small("deepseek_v3", folder, changes)
    shape = (config.training.local_batch_size, config.training.seq_len)
    tokens = torch.arange(shape[0] * shape[1]).reshape(shape) % 50
    batch = {"tokens": tokens, "labels": tokens.roll(-1, 1)}
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        assert isinstance(step, GraphStep)
        if scale == 1.0:
            loss = step(batch, normalizers_of(step, valid_tokens=tokens.numel()))
        else:
            assert isinstance(step.program, SplitProgram)
            valid = normalizers_of(step, valid_tokens=tokens.numel())
            loss, _ = step.program.loss(step.source.inputs(step.inputs(batch), valid))
            (loss * scale).backward()
        return loss.detach(), {name: parameter.grad for name, parameter in step.parameters.items()}


def test_the_two_halves_give_the_results_of_the_whole(tmp_path):
    (whole, wanted), (cut, found) = (make_gradients(tmp_path, partition) for partition in ("none", "min_cut"))
    assert torch.equal(whole, cut)
    for name, gradient in wanted.items():
        assert torch.equal(gradient, found[name]), name


@pytest.mark.long
def test_a_loss_that_is_scaled_outside_scales_every_gradient(tmp_path):
    _, plain = make_gradients(tmp_path, "min_cut")
    _, doubled = make_gradients(tmp_path, "min_cut", scale=2.0)
    for name, gradient in plain.items():
        assert torch.equal(gradient * 2, doubled[name]), name


def is_enough(pipes, closed):
    """Whether no water gets from a spring to the sea when these pipes are closed."""
    wet = set()
    for index, (_, is_spring, is_read, _) in enumerate(pipes):
        fed = is_spring or any(index in pipes[other][3] for other in wet)
        if fed and index not in closed:
            wet.add(index)
            if is_read:
                return False
    return True


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_is_the_cheapest_of_all(seed):
    """Against every set of pipes there is."""
    random = Random(seed)
    count = random.randint(3, 8)
    pipes = tuple(
        (
            random.choice([None, 1, 2, 3, 5]) if index % 3 else random.randint(1, 6),
            random.random() < 0.4,
            random.random() < 0.4,
            tuple(later for later in range(index + 1, count) if random.random() < 0.35),
        )
        for index in range(count)
    )
    closable = [index for index, pipe in enumerate(pipes) if pipe[0] is not None]
    plans = [set(plan) for size in range(len(closable) + 1) for plan in combinations(closable, size)]
    costs = [sum(pipes[index][0] for index in plan) for plan in plans if is_enough(pipes, plan)]
    if not costs:
        with pytest.raises(Exception, match="Infinite"):
            cut_flow_network(pipes)
        return
    found = set(cut_flow_network(pipes))
    assert is_enough(pipes, found)
    assert sum(pipes[index][0] for index in found) == min(costs)


def test_a_small_value_is_kept_instead_of_the_large_matmul_it_comes_from():
    hand = ByHand()
    x, w = hand.input("x", 4, 4), hand.input("w", 4, 4)
    matmul = hand.call(ATEN.mm.default, x, w, path="layers.0.ffn")
    small_one = hand.call(ATEN.sum.dim_IntList, matmul, [0], path="layers.0.ffn")
    loss = hand.call(ATEN.sum.default, small_one, path="head")
    back = hand.call(ATEN.mul.Tensor, x, small_one, path="layers.0.ffn", direction=BACKWARD)
    graph = hand.done(loss, w=back)
    plans = {"the matmul": {matmul}, "the cut": plan_min_cut(graph, set(), lambda node: node is matmul)}
    sizes = {name: count_saved_bytes(graph, find_crossing(graph, kept)) for name, kept in plans.items()}
    assert sizes == {"the matmul": 64, "the cut": 16}


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(dp_shard=2, ep=2)], ids=["one", "ep2"])
def test_no_matmul_attention_or_exchange_is_computed_twice(mesh):
    graph, facts = capture_small("deepseek_v3", mesh)
    pass_ = make_pass("choose_saved")
    pass_.config = pass_.config.replace(policy="min_cut")
    again = find_crossing(graph, pass_.plan(graph, facts)).again
    names = {str(node.target) for node in again}
    assert not any(word in name for name in names for word in ("mm.", "attention", "topk", "all_to_all"))

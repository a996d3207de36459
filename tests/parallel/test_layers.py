"""Collectives and the layers made of them compute what their whole counterparts compute, forward and backward."""

import pytest
import torch
import torch.nn.functional as F

from monograph.parallel.mesh import Mesh
from tests.kit.ranks import pool
from tests.parallel.layer_work import EXPERTS, TOKENS, TOP_K, cross, lose, send_to_experts, swap_rows


@pytest.mark.parametrize(("size", "dim"), [(2, 0), (2, 1), (4, 2)])
def test_gather_and_scatter_are_each_others_transpose(size, dim):
    ranks = pool.run(size, cross, size, dim)
    together = torch.cat([rank["piece"] for rank in ranks], dim=dim)
    summed = sum(rank["whole"] for rank in ranks)
    weights = sum(rank["weights"][0] for rank in ranks)
    spread = torch.cat([rank["weights"][1] for rank in ranks], dim=dim)
    for number, rank in enumerate(ranks):
        assert rank["gathered"].equal(together)
        assert rank["grad_whole"].equal(spread), "every rank's part of the sum gets the whole gradient"
        assert torch.allclose(rank["scattered"], summed.chunk(size, dim)[number], atol=1e-6)
        assert torch.allclose(rank["grad_piece"], weights.chunk(size, dim)[number], atol=1e-6)
        assert rank["largest"] == together.max()


def test_rows_find_their_way_and_their_gradients_find_it_back():
    sizes = [[2, 0, 1], [3, 1, 0], [0, 4, 0]]
    ranks = pool.run(3, swap_rows, sizes)
    pieces = [torch.split(rank["rows"], sent) for rank, sent in zip(ranks, sizes, strict=True)]
    for number, rank in enumerate(ranks):
        assert rank["arrived"].equal(torch.cat([piece[number] for piece in pieces]))
        expected = torch.tensor([1.0 + peer for peer, count in enumerate(sizes[number]) for _ in range(count)])
        assert rank["grad"].equal(expected.unsqueeze(-1).expand(-1, 2))


def choose(rank: int, kind: str) -> list[list[int]]:
    """Each token's experts: any two, all the same two, or none of half of the experts."""
    generator = torch.Generator().manual_seed(100 + rank)
    if kind == "all_to_one":
        return [[5, 2]] * TOKENS
    limit = EXPERTS // 2 if kind == "half" else EXPERTS
    return [torch.randperm(limit, generator=generator)[:TOP_K].tolist() for _ in range(TOKENS)]


@pytest.mark.parametrize("kind", ["any", "all_to_one", "half"])
@pytest.mark.parametrize("mesh", [Mesh(dp_shard=2, ep=2), Mesh(dp_shard=2, tp=2, ep=2, etp=2), Mesh(tp=2, etp=2)])
def test_experts_elsewhere_answer_like_experts_at_home(mesh, kind):
    """Dropless: whatever is chosen, every row arrives, is answered and comes back; all sizes in one copy."""
    chosen = [choose(rank, kind) for rank in range(mesh.world_size)]
    for answer in pool.run(mesh.world_size, send_to_experts, mesh, chosen):
        assert answer["same"] == [True, True, True]
        copied = [(2 * mesh.ep + mesh.etp,)] if mesh.ep > 1 else []
        assert answer["copies"] == copied, "one blocking copy for all sizes, and none where no size depends on the data"
        assert answer["sent"] == TOKENS * TOP_K, "a rank sends its own tokens and nothing else"
        assert answer["load_is_own"]


@pytest.mark.parametrize(("vocab", "size"), [(64, 2), (59, 2), (59, 4)])
def test_the_loss_is_whole_though_no_rank_holds_a_row_of_logits(vocab, size):
    ranks = pool.run(size, lose, vocab, size)
    hidden, weight, labels = ranks[0]["inputs"]
    hidden.requires_grad_(), weight.requires_grad_()
    loss = F.cross_entropy(hidden[0] @ weight.T, labels[0], ignore_index=-100, reduction="sum") / 5
    loss.backward()
    for rank in ranks:
        assert torch.allclose(rank["loss"], loss) and torch.allclose(rank["evaluated"], loss)
        assert torch.allclose(rank["hidden"], hidden.grad, atol=1e-6)
        assert rank["width"] == -(-vocab // size), "logits are as wide as a rank's part"
    parts = torch.cat([rank["weight"] for rank in ranks])
    assert torch.allclose(parts[:vocab], weight.grad, atol=1e-6)
    assert not parts[vocab:].any(), "padding has no gradient"

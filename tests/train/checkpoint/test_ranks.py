"""Several ranks save one checkpoint together, and any number of them can load it, sharded in any way."""

import torch
import torch.multiprocessing

from monograph.train.checkpoint.verify import verify_checkpoint
from tests.train.checkpoint.disks import blank, make_manager, same
from tests.train.checkpoint.rank_work import make_full, start


def test_what_two_ranks_save_loads_on_one_and_the_other_way_round(tmp_path):
    """One pair of processes serves every promise about ranks, since starting them takes most of the time."""
    with make_manager(tmp_path / "one") as manager:
        manager.save(5, make_full(5), {})
    torch.multiprocessing.spawn(start, args=(tmp_path,), nprocs=2)

    live = blank(make_full(1))
    with make_manager(tmp_path / "two") as manager:
        assert manager.load("latest", live).values == {"step": 1}
    assert same(live, make_full(1))
    manifest = verify_checkpoint(tmp_path / "two" / "step-00000001")
    chunks = {name: [chunk.sizes for chunk in tensor.chunks] for name, tensor in manifest.tensors.items()}
    assert chunks["model/rows"] == [(3, 4), (3, 4)], "each rank wrote its own half"
    assert chunks["model/uneven"] == [(3, 3), (2, 3)]
    assert chunks["model/one_row"] == [(1, 4)], "a rank without elements writes none"
    assert chunks["model/everywhere"] == [(4, 4)], "copies are written once"
    assert chunks["optimizer/empty"] == []

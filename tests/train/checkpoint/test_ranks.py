"""Several ranks save one checkpoint together, and any number of them can load it, sharded in any way."""

import pytest

from monograph.train.checkpoint.verify import verify_checkpoint
from tests.kit.ranks import pool
from tests.train.checkpoint import rank_work
from tests.train.checkpoint.disks import blank, find_names, make_manager, same
from tests.train.checkpoint.rank_work import LINE, SQUARE, make_full


def load_alone(folder) -> dict:
    live = blank(make_full(0))
    with make_manager(folder) as manager:
        manager.load("latest", live)
    return live


def test_every_rank_writes_its_own_part_and_copies_are_written_once(tmp_path):
    pool.run(2, rank_work.save, tmp_path, 1, LINE)
    path = tmp_path / "step-00000001"
    assert find_names(path) == ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"]
    tensors = verify_checkpoint(path).tensors
    chunks = {name: [chunk.sizes for chunk in tensor.chunks] for name, tensor in tensors.items()}
    assert chunks["model/rows"] == [(3, 4), (3, 4)]
    assert chunks["model/uneven"] == [(3, 3), (2, 3)]
    assert chunks["model/one_row"] == [(1, 4)], "a rank without elements writes none"
    assert chunks["model/everywhere"] == [(4, 4)]
    assert chunks["optimizer/empty"] == []


@pytest.mark.parametrize(("shape", "other"), [(LINE, LINE), (LINE, SQUARE), (SQUARE, LINE), (SQUARE, SQUARE)])
def test_what_was_saved_on_one_mesh_loads_on_another_and_on_one_process(tmp_path, shape, other):
    pool.run(2 ** len(shape), rank_work.save, tmp_path, 3, shape)
    pool.run(2 ** len(other), rank_work.load, tmp_path, 3, other)
    assert same(load_alone(tmp_path), make_full(3))


@pytest.mark.parametrize("shape", [LINE, SQUARE])
def test_what_one_process_saved_loads_on_a_mesh(tmp_path, shape):
    with make_manager(tmp_path) as manager:
        manager.save(5, make_full(5), {})
    pool.run(2 ** len(shape), rank_work.load, tmp_path, 5, shape)


def test_ranks_save_in_the_background_while_training_goes_on(tmp_path):
    pool.run(2, rank_work.save_in_the_background, tmp_path)
    assert same(load_alone(tmp_path), make_full(4))


def test_a_disk_full_under_one_rank_stops_none_and_is_known_to_all(tmp_path):
    pool.run(2, rank_work.fail_on_one_rank, tmp_path)
    assert find_names(tmp_path) == ["step-00000002"]


def test_a_fault_of_the_program_on_one_rank_is_raised_on_all(tmp_path):
    pool.run(2, rank_work.have_a_bug_on_one_rank, tmp_path)
    assert find_names(tmp_path) == ["step-00000002"]


def test_a_folder_that_the_ranks_do_not_share_is_refused_at_the_start(tmp_path):
    pool.run(2, rank_work.open_different_folders, tmp_path)


def test_damage_that_one_rank_finds_is_known_to_all_and_they_fall_back_together(tmp_path):
    pool.run(2, rank_work.agree_on_damage, tmp_path)


def test_a_tensor_that_only_one_rank_has_is_saved_and_loaded_by_that_rank(tmp_path):
    pool.run(2, rank_work.keep_tensors_of_single_ranks, tmp_path)

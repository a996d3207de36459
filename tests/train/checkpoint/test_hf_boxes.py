"""A rank that needs a part of a Hugging Face model reads that part, and gets the bits of the whole."""

import itertools
import random

import pytest
import torch

from monograph.models.hf_tensors import read_part_of_theirs, read_theirs
from monograph.train.checkpoint.hf_folder import HfFolder
from monograph.train.checkpoint.hf_weights import HfWeights
from tests.kit.pretrained import write_pretrained
from tests.models.test_gpt_oss import write_packed
from tests.train.checkpoint.test_hf_fp8 import EXPERT, write_fp8

FOLDERS = {
    "llama": write_pretrained,
    "experts": lambda folder: write_pretrained(folder, "qwen3_moe"),
    "two dims of ours in one of theirs": lambda folder: write_pretrained(folder, "llama4"),
    "fp8": lambda folder: write_fp8(folder, name=EXPERT),
    "mxfp4": lambda folder: (folder.mkdir(), write_packed(folder)),
}


def draw_box(shape, draw):
    """Part of a tensor that is not empty."""
    starts = [draw.randrange(size) for size in shape]
    return tuple(slice(start, draw.randint(start + 1, size)) for start, size in zip(starts, shape, strict=True))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_part_has_the_bits_of_the_whole(name, tmp_path):
    FOLDERS[name](tmp_path / "theirs")
    weights, draw = HfWeights(tmp_path / "theirs"), random.Random(0)
    for key, record in weights.records().items():
        for (number, chunk), _ in itertools.product(enumerate(record.chunks), range(3)):
            box = draw_box(chunk.sizes, draw)
            whole = weights.read_piece(key, number)
            whole = whole.unsqueeze(0) if whole.dim() < len(box) else whole
            found = weights.read_box(key, number, box)
            assert found.dtype == whole.dtype and torch.equal(found, whole[box]), (key, number, box)


class Boxes(dict):
    """Tensors in memory, of which parts are taken as a folder takes them."""

    def read_box(self, name, box):
        return self[name][box]


def test_parts_of_fp8_weights_take_the_scales_of_their_blocks():
    draw, weight = random.Random(0), torch.randn(300, 200, generator=torch.Generator().manual_seed(0))
    folder = Boxes(w=weight.to(torch.float8_e4m3fn), w_scale_inv=torch.rand(3, 2) + 0.5)
    whole = read_theirs(folder, "w")
    for _ in range(30):
        box = draw_box((300, 200), draw)
        assert torch.equal(read_part_of_theirs(folder, "w", box), whole[box])


@pytest.mark.parametrize("dim", [0, 1])
def test_ranks_with_a_quarter_each_read_the_model_once_together(dim, tmp_path, monkeypatch):
    write_pretrained(tmp_path / "theirs", "qwen3_moe")
    weights, read, counts = HfWeights(tmp_path / "theirs"), HfFolder._read, []

    def count(self, name, box=()):
        found = read(self, name, box)
        counts.append(found.numel())
        return found

    monkeypatch.setattr(HfFolder, "_read", count)
    total = 0
    for key, record in weights.records().items():
        for number, chunk in enumerate(record.chunks):
            total += torch.Size(chunk.sizes).numel()
            cut = min(dim + (len(record.chunks) > 1), len(chunk.sizes) - 1)
            for rank in range(4):
                box = [slice(0, size) for size in chunk.sizes]
                box[cut] = slice(*(chunk.sizes[cut] * each // 4 for each in (rank, rank + 1)))
                weights.read_box(key, number, tuple(box))
    assert sum(counts) == total

"""Models of Hugging Face come in and go out without losing a bit, and in little memory."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file

from monograph.errors import CheckpointError
from monograph.models.init import reset
from monograph.train.checkpoint.disk import Disk, write_file
from monograph.train.checkpoint.hf_export import export_hf
from monograph.train.checkpoint.hf_folder import HfFolder
from monograph.train.checkpoint.hf_import import import_hf
from monograph.train.checkpoint.manifest import CheckpointManifest, Chunk, TensorRecord, render_manifest
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.tensor_file import TensorSpec, write_tensor_file
from monograph.train.checkpoint.verify import check_same_weights, verify_checkpoint
from tests.kit.pretrained import write_pretrained
from tests.train.checkpoint.disks import make_manager
from tests.train.checkpoint.theirs import CASES, SHARED, read_all, read_ours, same_bits, write_theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_import_export_import_is_bitwise(tmp_path, case, dtype):
    write_theirs(tmp_path / "theirs", case, dtype=dtype)
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "back")
    import_hf(tmp_path / "back", tmp_path / "again")
    assert same_bits(read_all(tmp_path / "back"), read_all(tmp_path / "theirs"))
    assert same_bits(read_all(tmp_path / "again"), read_all(tmp_path / "ours"))
    first, again = verify_checkpoint(tmp_path / "ours"), verify_checkpoint(tmp_path / "again")
    assert first.tensors == again.tensors and first.files == again.files
    assert first.values["model"] == again.values["model"]


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_gives_their_logits_and_so_does_their_class_on_our_export(tmp_path, case):
    theirs = write_theirs(tmp_path / "theirs", case)
    moved = import_hf(tmp_path / "theirs", tmp_path / "ours")
    tokens = torch.arange(40).reshape(2, 20)
    ours = moved.config.build().eval()
    reset(ours)
    ours.load_state_dict(read_ours(tmp_path / "ours"), strict=not moved.config.tied_embeddings)
    with torch.no_grad():
        assert (ours.predict(tokens) - theirs(tokens).logits).abs().max() <= 1e-5
        export_hf(tmp_path / "ours", tmp_path / "back")
        back = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto").eval()
        assert type(back) is type(theirs)
        assert back.dtype == torch.float32
        assert back(tokens).logits.equal(theirs(tokens).logits)


def test_a_sharded_folder_is_read_and_written(tmp_path):
    write_theirs(tmp_path / "theirs", "qwen3 moe", shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 3
    moved = import_hf(tmp_path / "theirs", tmp_path / "ours", max_file_bytes=20_000)
    assert moved.n_files > 3
    out = export_hf(tmp_path / "ours", tmp_path / "back", max_file_bytes=20_000)
    names = sorted(path.name for path in (tmp_path / "back").iterdir())
    files = [f"model-{number:05d}-of-{out.n_files:05d}.safetensors" for number in range(1, out.n_files + 1)]
    assert names == sorted(["config.json", "generation_config.json", "model.safetensors.index.json", *files])
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == out.n_bytes == sum(t.nbytes for t in read_all(tmp_path / "back").values())
    for name, file in index["weight_map"].items():
        assert name in load_file(tmp_path / "back" / file)
    assert same_bits(read_all(tmp_path / "back"), read_all(tmp_path / "theirs"))
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")


def test_a_checkpoint_in_many_chunks_is_exported_whole(tmp_path):
    """As several ranks would have written it: cut along the first dim, the experts' stacks included."""
    write_theirs(tmp_path / "theirs", "qwen3 moe")
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    whole, values = read_ours(tmp_path / "ours"), verify_checkpoint(tmp_path / "ours").values
    cut_up(tmp_path / "cut", whole, values)
    export_hf(tmp_path / "cut", tmp_path / "back")
    assert same_bits(read_all(tmp_path / "back"), read_all(tmp_path / "theirs"))


def cut_up(folder: Path, tensors: dict[str, torch.Tensor], values: dict) -> None:
    folder.mkdir()
    parts: dict[int, dict[str, torch.Tensor]] = {0: {}, 1: {}, 2: {}}
    records = {}
    for name, tensor in tensors.items():
        chunks, row = [], 0
        for rank, piece in enumerate(tensor.tensor_split(3)):
            if piece.numel():
                key = f"model/{name}@{row}"
                parts[rank][key] = piece
                offsets = (row,) + (0,) * (tensor.dim() - 1)
                chunks.append(Chunk(offsets, tuple(piece.shape), f"rank-{rank:05d}.safetensors", key))
                row += piece.shape[0]
        records[f"model/{name}"] = TensorRecord("float32", tuple(tensor.shape), tuple(chunks))
    files = {}
    for rank, part in parts.items():
        specs = [TensorSpec(key, piece.dtype, tuple(piece.shape)) for key, piece in part.items()]
        name = f"rank-{rank:05d}.safetensors"
        files[name] = write_tensor_file(Disk(), folder / name, specs, lambda spec, part=part: [part[spec.key]])
    write_file(Disk(), folder / "manifest.json", render_manifest(CheckpointManifest(0, 0, "r", values, records, files)))


def test_a_run_can_start_from_an_import_in_another_type(tmp_path):
    write_theirs(tmp_path / "theirs", "deepseek", dtype=torch.bfloat16)
    moved = import_hf(tmp_path / "theirs", tmp_path / "ours")
    model = moved.config.build()
    live = {f"model/{name}": tensor for name, tensor in model.state_dict().items()} | {"rng/cpu": torch.zeros(3)}
    with make_manager(tmp_path / "run", load=str(tmp_path / "ours"), load_model_only=True) as manager:
        assert manager.resume(live).step == 0
    ours = read_ours(tmp_path / "ours")
    assert all(tensor.equal(ours[name].float()) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("direction", ["import", "export"])
def test_weights_are_cast_when_asked_and_buffers_are_not(tmp_path, direction):
    write_theirs(tmp_path / "theirs", "deepseek")
    import_hf(tmp_path / "theirs", tmp_path / "ours", dtype=torch.bfloat16 if direction == "import" else None)
    result = read_ours(tmp_path / "ours")
    if direction == "export":
        export_hf(tmp_path / "ours", tmp_path / "back", dtype=torch.bfloat16)
        result = read_all(tmp_path / "back")
        assert json.loads((tmp_path / "back" / "config.json").read_text())["torch_dtype"] == "bfloat16"
        original = read_all(tmp_path / "theirs")
        assert all(tensor.equal(original[name].to(tensor.dtype)) for name, tensor in result.items())
    kinds = {name: tensor.dtype for name, tensor in result.items()}
    biases = [name for name in kinds if name.endswith("bias")]
    assert biases
    assert all(kinds[name] == (torch.float32 if name in biases else torch.bfloat16) for name in kinds)


STATUS = Path("/proc/self/status")


class WatchingDisk(Disk):
    """Notes how much memory of its own the process has at every write; mapped files are not counted."""

    def __init__(self) -> None:
        self.peak = 0

    def write(self, file, data):
        self.peak = max(self.peak, find_own_bytes())
        return super().write(file, data)


def find_own_bytes() -> int:
    return 1024 * int(re.search(r"RssAnon:\s+(\d+) kB", STATUS.read_text())[1])


@pytest.mark.skipif(not STATUS.exists(), reason="this system does not tell a process's own memory")
def test_neither_direction_holds_the_model(tmp_path):
    sizes = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 24}
    config = transformers.LlamaConfig(**{**SHARED, **sizes})
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "theirs")
    for move, source, target in ((import_hf, "theirs", "ours"), (export_hf, "ours", "back")):
        disk, before = WatchingDisk(), find_own_bytes()
        moved = move(tmp_path / source, tmp_path / target, dtype=torch.float64, disk=disk)
        assert moved.n_bytes > 50e6
        assert disk.peak - before < moved.n_bytes / 4


class TwoRanks(Ranks):
    """This process and one that finds something else."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def all_gather_object(self, value):
        return [value, self.other]


def test_ranks_whose_folders_hold_other_weights_of_the_same_model_are_refused(tmp_path):
    for name, scale in (("one", 1.0), ("other", 1.5)):
        write_pretrained(tmp_path / name, scale=scale)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    one, copy, other = (HfFolder(tmp_path / name).digest() for name in ("one", "copy", "other"))
    check_same_weights(tmp_path / "one", one, TwoRanks(copy))
    with pytest.raises(CheckpointError, match="rank 1 finds other weights"):
        check_same_weights(tmp_path / "one", one, TwoRanks(other))


def test_ranks_whose_checkpoints_were_saved_by_other_runs_are_refused(tmp_path):
    write_theirs(tmp_path / "theirs", next(iter(CASES)))
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    with pytest.raises(CheckpointError, match="rank 1 finds other weights"):
        verify_checkpoint(tmp_path / "ours", TwoRanks("the digest of another manifest"))

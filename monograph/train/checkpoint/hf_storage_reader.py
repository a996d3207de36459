"""Loading straight from a Hugging Face folder: what torch's planner asks for is read from their files."""

from torch.distributed.checkpoint import LoadPlan, LoadPlanner
from torch.futures import Future

from monograph.config.json_form import to_json
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.manifest import CheckpointManifest
from monograph.train.checkpoint.model_source import MODEL_VALUE
from monograph.train.checkpoint.reader import SafetensorsReader


class HfStorageReader(SafetensorsReader):
    """The folder as a checkpoint of weights alone. Of each tensor of theirs the rank's part alone is read."""

    def __init__(self, weights: HfWeights) -> None:
        self.weights = weights
        values = {MODEL_VALUE: to_json(weights.config)}
        super().__init__(weights.folder.path, CheckpointManifest(0, 0, "", values, weights.records(), {}))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in sorted(plan.items, key=lambda item: item.storage_index.fqn):
            index, target = item.storage_index, planner.resolve_tensor(item).detach()
            number = index.offset[0] if index.offset and len(self.manifest.tensors[index.fqn].chunks) > 1 else 0
            box = tuple(slice(low, low + size) for low, size in zip(item.storage_offsets, item.lengths, strict=True))
            piece = self.weights.read_box(index.fqn, number, box)
            self.weights.check_finite(piece, index.fqn, number, target.dtype)
            target.copy_(piece)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

"""The data of a run: what is trained on and what is validated on, opened by every rank and compared between them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from monograph import strict_json
from monograph.errors import MonographError
from monograph.parallel.groups import Groups
from monograph.train.config import TrainerConfig
from monograph.train.data.file_checks import Check, find_damage, identify
from monograph.train.data.loader import DataLoader
from monograph.train.data.revisions import Revisions, find_commit
from monograph.train.data.sample import Sample
from monograph.train.node_corpus import load_on_node
from monograph.train.preflight import read_continued
from monograph.train.state import check_position, find_global_batch

TRAINING = "the training data"
T = TypeVar("T")


def open_data(config: TrainerConfig, groups: Groups) -> tuple[DataLoader, dict[str, DataLoader]]:
    """The training data and the validation sets by name, once all ranks have the same."""
    continued = find_once(groups, lambda: read_continued(config))
    revisions = Revisions(
        saved=continued.get("revisions") or continued.get("data", {}).get("revisions", {}),
        look_up=lambda name, revision: find_once(groups, lambda: find_commit(name, revision)),
    )
    data: DataLoader = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.find_vocab_size(),
        seed=config.debug.seed,
        split="train",
        revisions=revisions,
        check_files=lambda files: check_together(groups, files),
        samples_per_update=find_global_batch(config.training, groups.mesh.data_parts),
        load_corpus=partial(load_on_node, groups),
    )
    check_position(continued, data, config, parts=groups.mesh.data_parts)
    validation_sets = data.open_validation_sets() if config.validator.interval else {}
    check_same_data(groups, {TRAINING: data, **validation_sets})
    return data, validation_sets


def find_once(groups: Groups, find: Callable[[], T]) -> T:
    """What the first rank finds, on every rank; or its error, in its words."""
    found: Any = None
    problem: MonographError | None = None
    if groups.rank == 0:
        try:
            found = find()
        except MonographError as error:
            problem = error
    found, problem = groups.broadcast_object((found, problem))
    if problem is not None:
        raise problem
    return found


def check_together(groups: Groups, files: Sequence[Check]) -> None:
    """Let each file be read by one of the ranks that see it; where nodes have copies, by one rank of each node."""
    seen = groups.all_gather_object(identify(files))
    peers = [rank for rank, each in enumerate(seen) if each == seen[groups.rank]]
    problem = find_damage(files[peers.index(groups.rank) :: len(peers)])
    problems = groups.all_gather_object(problem)
    found = next((each for each in problems if each is not None), None)
    if found is not None:
        raise found


def check_same_data(groups: Groups, loaders: Mapping[str, DataLoader]) -> None:
    """Refuse files or a tokenizer that differ between nodes: each rank reads its part of one order of the samples,
    and in other data that order has other places and another length."""
    text = "\n".join(f"{name}: {describe_data(loader)}" for name, loader in loaders.items())
    groups.check_same("the data", text, text=lambda: text)


def describe_data(loader: DataLoader) -> str:
    """What two ranks that read the same data have in common."""
    facts = loader.fingerprint()
    if loader.samples_per_epoch is not None:  # a stream would be read from its start
        facts["first_sample"] = digest_sample(loader.sample(0, 0))
    return strict_json.dump(facts)


def digest_sample(sample: Sample) -> str:
    """The hash of a sample's arrays: what a source says of itself does not cover what its files hold."""
    found = hashlib.sha256()
    for name in sorted(sample):
        found.update(f"{name} {sample[name].dtype.str} {sample[name].shape}\n".encode())
        found.update(sample[name].tobytes())
    return found.hexdigest()

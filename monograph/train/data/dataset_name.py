"""The short names of datasets: which source `--dataloader.dataset NAME` means, unless one is chosen by class."""

from pathlib import Path

from monograph.train.data.config import BUILTIN, HUB_PREFIX, DataLoaderConfig
from monograph.train.data.named import parse_mixture
from monograph.train.data.open_shards import is_shard_folder
from monograph.train.data.source_configs import (
    BuiltinSourceConfig,
    DataSourceConfig,
    FileSourceConfig,
    HubSourceConfig,
    MixturePartConfig,
    MixtureSourceConfig,
    ShardSourceConfig,
)


def choose_source(config: DataLoaderConfig) -> DataSourceConfig:
    """The source of the training data: chosen by class, a mixture, or what the dataset's name means."""
    if config.source is not None:
        return config.source
    if config.mixture:
        parts = [
            MixturePartConfig(name=each.name, weight=each.weight, source=find_source(each.dataset, config))
            for each in parse_mixture(config.mixture)
        ]
        return MixtureSourceConfig(parts=tuple(parts))
    return find_source(config.dataset, config)


def find_source(name: str, config: DataLoaderConfig) -> DataSourceConfig:
    """The source of a dataset by its name, with the options that the loader's config has for it."""
    if name == BUILTIN:
        return BuiltinSourceConfig()
    if name.startswith(HUB_PREFIX):
        return HubSourceConfig(
            name=name.removeprefix(HUB_PREFIX),
            subset=config.hf_subset,
            split=config.hf_split,
            revision=config.hf_revision,
            text_field=config.text_field,
            buffer=config.stream_buffer,
            lanes=config.stream_lanes,
            retries=config.stream_retries,
        )
    if is_shard_folder(Path(name)):
        return ShardSourceConfig(folder=name, verify=config.verify_shards)
    return FileSourceConfig(path=name, text_field=config.text_field, document_separator=config.document_separator)

"""`monograph data pack DATASET OUT`: tokenize once, train many times."""

from dataclasses import dataclass
from pathlib import Path

from monograph.commands.arguments import DataPackArguments
from monograph.commands.data_flags import flags_without_section
from monograph.config.configurable import Configurable, check_config
from monograph.errors import ConfigError
from monograph.locks.folder_lock import locked_output
from monograph.log import set_up_log
from monograph.system.console import print_plain
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.pack import pack
from monograph.train.data.shards import remove_leftovers
from monograph.train.unused_settings import find_unused


@dataclass(kw_only=True, slots=True)
class _Packed(Configurable.Config):
    """The section that packing has of a run's configuration."""

    dataloader: DataLoaderConfig
    """What is read."""


def data_pack(arguments: DataPackArguments) -> int:
    """Write the shards and say how to train on them."""
    set_up_log()
    dataset = DataLoaderConfig(
        dataset=arguments.dataset,
        text_field=arguments.text_field,
        document_separator=arguments.document_separator,
        hf_subset=arguments.hf_subset,
        hf_split=arguments.hf_split,
        hf_revision=arguments.hf_revision,
        stream_retries=arguments.stream_retries,
    )
    check_config(dataset)
    for unused in find_unused(_Packed(dataloader=dataset)):
        name = unused.path.removeprefix("dataloader.")
        raise ConfigError(
            f"--{name} is given and the dataset is {dataset.dataset}",
            why=f"{name} would have no effect",
            do=f"leave --{name} out",
        )
    with flags_without_section(), locked_output(Path(arguments.out)):
        remove_leftovers(Path(arguments.out))
        summary = pack(
            dataset,
            arguments.tokenizer,
            Path(arguments.out),
            shard_tokens=arguments.shard_tokens,
            overwrite=arguments.overwrite,
        )
    print_plain(str(summary))
    return 0

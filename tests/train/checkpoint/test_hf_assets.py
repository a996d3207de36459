"""The small files of a Hugging Face model are read, or named in the error."""

import os

import pytest

from monograph.errors import ConfigError
from monograph.system.foreign_json import UnusableFile
from monograph.train.checkpoint.hf_assets import read_asset
from monograph.train.checkpoint.hf_export import read_model_config


def test_a_file_that_the_system_does_not_show_is_named(tmp_path):
    with pytest.raises(UnusableFile, match=r"cannot read .*generation_config.json"):
        read_asset(tmp_path / "generation_config.json")


def test_a_file_with_a_hole_is_refused_by_its_size(tmp_path):
    path = tmp_path / "tokenizer_config.json"
    path.touch()
    os.truncate(path, 100 << 30)
    with pytest.raises(UnusableFile, match="larger than 512 MiB"):
        read_asset(path)


@pytest.mark.parametrize("content", ["{}", '{"model_type": 5}', '{"model_type": "gpt3"}'])
def test_the_config_of_an_unknown_model_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"model_type.* in {tmp_path / 'config.json'}"):
        read_model_config(tmp_path / "config.json")

import subprocess
import sys

import pytest

from monograph.config.configurable import find_owner
from monograph.errors import ConfigError
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.loader import DataLoader
from monograph.train.data.tokenizer import StandardTokenizer
from monograph.train.data.tokenizer_config import StandardTokenizerConfig


def test_settings_load_without_torch_and_numpy():
    script = "import sys, monograph.train.data.config; print('torch' in sys.modules, 'numpy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False", "False"]


def test_packing_data_does_not_need_torch():
    script = "import sys, monograph.train.data.pack; print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["False"]


def test_each_config_builds_its_owner():
    assert find_owner(DataLoaderConfig) is DataLoader and DataLoader.Config is DataLoaderConfig
    assert (
        find_owner(StandardTokenizerConfig) is StandardTokenizer and StandardTokenizer.Config is StandardTokenizerConfig
    )


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (DataLoaderConfig(dataset=""), "dataset"),
        (DataLoaderConfig(dataset="hf:"), "dataset"),
        (DataLoaderConfig(validation_datasets=("hf:",)), "validation is 'hf:'"),
        (DataLoaderConfig(validation_datasets=("a.txt", "b.txt")), "told apart by names"),
        (DataLoaderConfig(validation_datasets=("a=a.txt", "a=b.txt")), "two sets called a"),
        (DataLoaderConfig(mixture=("web",)), "NAME=WEIGHT:DATASET"),
        (DataLoaderConfig(mixture=("web=0.5:",)), "NAME=WEIGHT:DATASET"),
        (DataLoaderConfig(mixture=("web=much:a.txt",)), "the weight of web is 'much'"),
        (DataLoaderConfig(mixture=("web=0:a.txt",)), "above 0"),
        (DataLoaderConfig(mixture=("web=1:a.txt", "web=1:b.txt")), "two sets called web"),
        (DataLoaderConfig(held_out_fraction=1.0), "held_out_fraction"),
        (DataLoaderConfig(held_out_fraction=-0.1), "held_out_fraction"),
        (DataLoaderConfig(text_field=""), "text_field"),
        (DataLoaderConfig(prefetch=0), "prefetch"),
        (DataLoaderConfig(stream_buffer=-1), "stream_buffer"),
        (DataLoaderConfig(stream_retries=-1), "stream_retries"),
        (StandardTokenizerConfig(eos_token="</s>"), "eos_token"),
        (StandardTokenizerConfig(bos_token="<s>"), "bos_token"),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(config, named):
    with pytest.raises(ConfigError, match=named) as error:
        config.check()
    assert error.value.do


def test_defaults_can_work():
    DataLoaderConfig().check()
    StandardTokenizerConfig().check()

import sysconfig
from pathlib import Path

import pytest

from monograph.errors import DataError
from monograph.train.data.builtin import open_builtin
from tests.kit.data import build_loader


def test_the_corpus_is_the_standard_library_in_sorted_order():
    documents = list(open_builtin().read())
    names = [document.where for document in documents]
    assert names == sorted(names) and len(names) == len(set(names))
    assert "argparse.py" in names and "asyncio/tasks.py" in names
    text = Path(sysconfig.get_paths()["stdlib"], "argparse.py").read_text(encoding="utf-8")
    assert documents[names.index("argparse.py")].text == text


def test_installed_packages_tests_and_machine_files_are_not_in_it():
    names = [document.where for document in open_builtin().read()]
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    assert not [name for name in names if "_sysconfigdata" in name]


def test_it_is_a_few_megabytes():
    assert 3e6 < sum(len(document.text) for document in open_builtin().read()) < 2e7


def test_two_loads_give_the_same_hash_and_samples():
    first, second = build_loader("builtin", seq_len=64), build_loader("builtin", seq_len=64)
    assert first.samples.content_hash == second.samples.content_hash and len(first.samples.content_hash) == 64
    assert first.samples_per_epoch == second.samples_per_epoch > 10_000
    assert first.sample(1, 777)["tokens"].tolist() == second.sample(1, 777)["tokens"].tolist()


def test_there_is_something_to_validate_on():
    assert build_loader("builtin", seq_len=64).open_validation_sets()["validation"].samples_per_epoch > 100


def test_an_order_of_files_does_not_depend_on_the_disk(tmp_path):
    for name in ("b.py", "a/c.py", "a.py", "test/x.py", "notes.txt", "_sysconfigdata_linux.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert [document.where for document in open_builtin(tmp_path).read()] == ["a.py", "a/c.py", "b.py"]


def test_a_python_without_sources_is_refused(tmp_path):
    with pytest.raises(DataError, match="built-in corpus is empty"):
        open_builtin(tmp_path)

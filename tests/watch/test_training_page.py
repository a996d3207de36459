"""`--metrics.page true`: the page of a run while it trains, and as a file afterwards."""

import logging
import re
from urllib.request import urlopen

import pytest

from monograph.run import train
from monograph.watch.training_page import FILE, training_page
from tests.kit.runs import tiny_run
from tests.watch.run_folders import make_run


@pytest.fixture
def addresses():
    """What the page's log says, as a list that grows."""
    found = []
    handler = logging.Handler()
    handler.emit = lambda record: found.extend(re.findall(r"http://\S+", record.getMessage()))
    log = logging.getLogger("monograph.page")
    level = log.level
    log.addHandler(handler)
    log.setLevel("INFO")
    yield found
    log.removeHandler(handler)
    log.setLevel(level)


def test_the_page_is_served_as_long_as_the_run_lasts(tmp_path, addresses):
    folder = make_run(tmp_path / "run", steps=10)
    with training_page(folder):
        (address,) = addresses
        with urlopen(address) as answer:
            assert b"ended early" in answer.read()
        assert not (folder / FILE).exists()
    with pytest.raises(OSError):
        urlopen(address)
    assert "ended early" in (folder / FILE).read_text()


def test_a_run_serves_its_page_and_leaves_it_in_its_folder(tmp_path, addresses):
    train(tiny_run(tmp_path / "run", {"metrics.page": True}))
    assert len(addresses) == 1
    page = (tmp_path / "run" / FILE).read_text()
    assert '"state":"finished"' in page and '"steps":3' in page

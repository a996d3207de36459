"""The longest files first, so that the workers of a parallel run finish together; no GPU, no tests of one."""

import gc
import logging
import os
import random
import sys

import pytest
import torch
from hypothesis import HealthCheck, settings

from monograph.log import get_log
from tests.kit.ranks import GARBAGE_THRESHOLD

LONGEST = (
    "tests/test_launch.py",
    "tests/train/test_every_field.py",
    "tests/parallel/test_checkpoint.py",
    "tests/passes/test_every_pass.py",
    "tests/families/test_promises.py",
    "tests/bisect/test_bisect.py",
    "tests/steps/test_graph_bits.py",
    "tests/verify/test_meshes.py",
    "tests/parallel/pipeline/test_training.py",
    "tests/parallel/pipeline/test_overlap.py",
    "tests/train/test_folder.py",
    "tests/families/test_modes.py",
    "tests/train/test_resume.py",
    "tests/passes/test_overlap_experts.py",
    "tests/verify/test_seeded_bugs.py",
    "tests/commands/test_inspect.py",
    "tests/passes/test_fuse_kernels.py",
    "tests/parallel/test_training.py",
    "tests/execute/test_artifact.py",
    "tests/train/checkpoint/test_crash.py",
    "tests/parallel/test_faults.py",
    "tests/graph/test_mutants.py",
    "tests/kernels/test_every_op.py",
    "tests/train/test_signals.py",
)


def pytest_addoption(parser):
    parser.addoption("--shuffle", type=int, default=None, metavar="SEED", help="run files and their tests in any order")


def pytest_terminal_summary(terminalreporter, config):
    if (seed := config.getoption("shuffle")) is not None:
        terminalreporter.write_line(f"the order was that of --shuffle {seed}")


def pytest_configure():
    """Captures make garbage by the million, which need not be looked for all the time; no test fails for being slow.

    Nothing is read from the cache of an earlier run, and none is left: tests that want one name a folder.
    """
    os.environ["XDG_CACHE_HOME"] = "/dev/null/no-cache"
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("unhurried")


def pytest_collection_modifyitems(config, items):
    """Order the files (tests within a file keep their order, unless --shuffle asks for any); skip what needs a device
    that is not here."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    indices = {path: index for index, path in enumerate(LONGEST)}
    if (seed := config.getoption("shuffle")) is not None:
        random.Random(seed).shuffle(items)
        indices = {
            path: index for index, path in enumerate(dict.fromkeys(item.nodeid.partition("::")[0] for item in items))
        }
    items.sort(key=lambda item: indices.get(item.nodeid.partition("::")[0], len(indices)))


@pytest.fixture(autouse=True)
def fresh_log():
    """A command sets up the log of its process: every test begins with one that nobody has set up."""
    forget_log()
    yield
    forget_log()


@pytest.fixture(autouse=True)
def fresh_modules(tmp_path_factory):
    """What a test has imported from a temporary folder is forgotten: its source is gone, or changed, for the next."""
    before = set(sys.modules)
    yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(f"{tmp_path_factory.getbasetemp()}/"):
            del sys.modules[name]


def forget_log():
    log = get_log()
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
    log.setLevel(logging.NOTSET)
    log.propagate = True


@pytest.hookimpl(trylast=True)  # fixtures have let go by then
def pytest_runtest_teardown(item, nextitem):
    """Between two files: what torch and earlier tests hold is not looked at again by every collection of garbage."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def pytest_collection_finish(session):
    gc.collect()
    gc.freeze()

"""benchmarks/expert_overlap.py: exchanges are hidden on the clock, not only by the model."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "expert_overlap.py"
SIZE = ["--layers", "2", "--dim", "128", "--seq", "64", "--steps", "3"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("benchmark_expert_overlap", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.long
def test_most_of_the_exchanges_are_hidden_when_blocks_are_cut(script, capsys):
    whole, cut = script.main(["--ways", "graph, block batch", *SIZE])
    assert whole.hidden < 0.2
    assert cut.hidden > 0.4  # with a margin for two blocks and a busy machine
    assert cut.hidden > whole.hidden + 0.3
    assert "graph, block batch" in capsys.readouterr().out

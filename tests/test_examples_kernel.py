"""The example of an own kernel runs, and the guide shows the code that runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from monograph.graph.allowed_ops import is_allowed
from monograph.kernels.check_op import check_op

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own_kernel.py"
GUIDE = ROOT / "docs" / "guides" / "own_kernel.md"


@pytest.mark.long
def test_the_example_of_an_own_kernel_runs_from_a_shell():
    done = subprocess.run([sys.executable, "-m", "examples.own_kernel"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [
        ["own_kernel::bias_relu2:", "checked"],
        ["own_kernel::bias_relu2_backward:", "checked"],
    ]
    assert done.stdout.count("torch.ops.own_kernel.") == 2, "one node for forward, one for backward"
    assert lines[-1] == "the captured step equals eager"
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 120


def test_the_examples_ops_keep_their_promises_and_may_stand_in_graph_files(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from examples.own_kernel import bias_relu2, bias_relu2_backward

    for op in (bias_relu2, bias_relu2_backward):
        assert check_op(op).keys() <= {"kernel", "gradient"}
        assert is_allowed(str(op.op))


@pytest.mark.gpu
def test_the_examples_kernels_hide_no_nan(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from examples.own_kernel import bias_relu2, bias_relu2_backward

    x, bias = torch.tensor([[float("nan"), 1.0, -1.0]], device="cuda"), torch.zeros(3, device="cuda")
    for found in (bias_relu2(x, bias), bias_relu2_backward.op(torch.ones_like(x), x, bias)):
        assert found.isnan().tolist() == [[True, False, False]]


def test_the_guides_code_is_that_of_the_example_and_its_fields_exist():
    text = GUIDE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)
    sources = "".join(path.read_text(encoding="utf-8") for path in (EXAMPLE, EXAMPLE.with_stem("own_kernel_on_gpu")))
    assert len(blocks) >= 4
    for block in blocks:
        assert block.strip("\n") in sources, block

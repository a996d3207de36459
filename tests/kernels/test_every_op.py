"""Every declared op keeps the promises of its declaration."""

from dataclasses import replace

import pytest

from monograph.graph import host_copy
from monograph.kernels.catalog import CUSTOM_OPS, MODULES
from monograph.kernels.check_op import CHECKS

OURS = {own.name: own for own in CUSTOM_OPS.values() if str(own.op).startswith("monograph.")}


SLOW = ("attention", "gradient")
"""Its gradients are compared with the definition's in test_attention.py, too."""
CASES = [
    pytest.param(name, check, marks=pytest.mark.long if (name, check) == SLOW or check == "schema" else ())
    for name in sorted(OURS)
    for check in CHECKS
]


@pytest.mark.parametrize("name, check", CASES)
def test_every_op_keeps_its_promise(name, check):
    reason = CHECKS[check](OURS[name])
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("name", sorted(OURS))
def test_torch_accepts_the_declaration_of_every_op_on_its_first_example(name):
    """On all of them in `make test-long`: most of the time goes by compiling, for every example anew."""
    op = OURS[name]
    reason = CHECKS["schema"](replace(op, examples=lambda: list(op.examples())[:1]))
    if reason:
        pytest.skip(reason)


def test_every_file_of_the_catalog_declares_an_op():
    for module in (*MODULES, host_copy):
        values = list(vars(module).values())
        assert any(value is op for value in values for op in CUSTOM_OPS), module

"""Every declared op keeps the promises of its declaration."""

import pytest

from monograph.graph import host_copy
from monograph.kernels.catalog import CUSTOM_OPS, MODULES
from monograph.kernels.check_op import CHECKS

OURS = {own.name: own for own in CUSTOM_OPS.values() if str(own.op).startswith("monograph.")}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", sorted(OURS))
def test_every_op_keeps_its_promise(name, check):
    reason = CHECKS[check](OURS[name])
    if reason:
        pytest.skip(reason)


def test_every_file_of_the_catalog_declares_an_op():
    for module in (*MODULES, host_copy):
        values = list(vars(module).values())
        assert any(value is op for value in values for op in CUSTOM_OPS), module

"""What kernels rely on is checked for every custom op of a graph that was read from a file."""

from monograph.graph.verify_kernels import KERNEL_SHAPES
from monograph.kernels.catalog import find_kernel_ops


def test_every_custom_op_has_a_rule_about_its_shapes():
    assert set(KERNEL_SHAPES) == {each.name for each in find_kernel_ops() if str(each.op).startswith("monograph.")}

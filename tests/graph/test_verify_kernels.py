"""What kernels rely on is checked for every custom op of a graph that was read from a file."""

import pytest

from monograph.graph.verify_kernels import KERNEL_SHAPES
from monograph.kernels.attention import KERNELS
from monograph.kernels.catalog import find_kernel_ops


def test_every_custom_op_has_a_rule_about_its_shapes():
    assert set(KERNEL_SHAPES) == {each.name for each in find_kernel_ops() if str(each.op).startswith("monograph.")}


@pytest.mark.parametrize("kernel", range(-1, len(KERNELS) + 1))
def test_attention_of_a_graph_file_names_a_kernel_that_exists(kernel):
    shape = (2, 9, 4, 8)
    fits = KERNEL_SHAPES["attention"]({"q": shape, "k": shape, "v": shape, "kernel": kernel, "window": 0})
    assert fits is (0 <= kernel < len(KERNELS))


@pytest.mark.parametrize("amax, fits", [((1,), True), ((), False), ((6,), False), ((1, 1), False)])
def test_a_matrix_with_one_float8_scale_takes_one_amax(amax, fits):
    assert KERNEL_SHAPES["float8_cast_known"]({"x": (4, 6), "amax": amax}) is fits

"""What kernels rely on is checked for every custom op of a graph that was read from a file."""

import pytest
from torch import Tensor

from monograph.graph.verify_kernels import KERNEL_SHAPES, do_shapes_fit
from monograph.kernels.attention import KERNELS
from monograph.kernels.catalog import find_kernel_ops

OURS = [each for each in find_kernel_ops() if str(each.op).startswith("monograph.")]


def test_every_custom_op_has_a_rule_about_its_shapes():
    assert set(KERNEL_SHAPES) == {each.name for each in OURS}


@pytest.mark.parametrize("op", OURS, ids=lambda op: op.name)
def test_the_rule_of_every_op_accepts_what_its_declaration_tries_it_with(op):
    names = [argument.name for argument in op.op._schema.arguments]
    for args in op.examples():
        given = {
            name: tuple(arg.shape) if isinstance(arg, Tensor) else arg for name, arg in zip(names, args, strict=True)
        }
        assert do_shapes_fit(op.op, given), given


@pytest.mark.parametrize(
    "value, key, starts, fits",
    [
        ((2, 3, 8), (), (2, 3), True),
        ((8,), (), (), True),
        ((2, 3, 8), (), (2, 3, 8), False),
        ((2, 3, 8), (), (2,), False),
        ((2, 3, 8), (1,), (2, 3), False),
        ((), (), (), False),
    ],
)
def test_dropout_reads_one_key_and_the_start_of_every_row(value, key, starts, fits):
    given = {"value": value, "key": key, "starts": starts, "probability": 0.1}
    assert KERNEL_SHAPES["dropout"](given) is fits


@pytest.mark.parametrize("kernel", range(-1, len(KERNELS) + 1))
def test_attention_of_a_graph_file_names_a_kernel_that_exists(kernel):
    shape = (2, 9, 4, 8)
    fits = KERNEL_SHAPES["attention"]({"q": shape, "k": shape, "v": shape, "kernel": kernel, "window": 0})
    assert fits is (0 <= kernel < len(KERNELS))


@pytest.mark.parametrize("amax, fits", [((1,), True), ((), False), ((6,), False), ((1, 1), False)])
def test_a_matrix_with_one_float8_scale_takes_one_amax(amax, fits):
    assert KERNEL_SHAPES["float8_cast_known"]({"x": (4, 6), "amax": amax}) is fits

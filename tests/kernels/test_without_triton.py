"""Files of kernels on a machine without Triton: they are imported like any other, and a launch is refused."""

import pytest

from monograph.compat.triton import MissingTriton
from monograph.errors import ConfigError
from monograph.kernels.catalog import find_kernel_ops
from monograph.kernels.launch import launch


def declare():
    triton, tl = MissingTriton("triton"), MissingTriton("triton.language")

    @triton.jit
    def plain_kernel(x, block: tl.constexpr):
        return x

    @triton.jit(do_not_specialize=["x"])
    def kernel_with_settings(x, block: tl.constexpr):
        return x

    return plain_kernel, kernel_with_settings


@pytest.mark.parametrize("kernel", declare(), ids=lambda kernel: kernel.name)
def test_a_kernel_can_be_declared_and_its_launch_names_it_and_what_is_missing(kernel):
    with pytest.raises(ConfigError, match=f"{kernel.name} cannot run") as error:
        launch(kernel, (1,), 0, block=16)
    assert "Triton is not installed" in error.value.why


def test_a_function_of_triton_is_refused_when_it_is_called():
    with pytest.raises(ConfigError, match=r"triton\.cdiv cannot run"):
        MissingTriton("triton").cdiv(3, 2)


def test_every_custom_op_is_launched_by_the_function_of_its_name():
    for each in (own for own in find_kernel_ops() if str(own.op).startswith("monograph.")):
        assert each.launcher.__name__ == each.name
        assert each.launcher.__module__.endswith("_on_gpu")

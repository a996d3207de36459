"""Tuning with a fake device: which candidate is kept, which are discarded, and what is not tried at all."""

import logging
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from monograph.compat.triton import TritonError
from monograph.config.references import import_named
from monograph.execute.custom_kernels import KernelCall
from monograph.execute.tune_kernels import has_same_bits, tune_calls
from monograph.execute.tuning_inputs import make_arguments
from monograph.graph.tensor_meta import TensorMeta
from monograph.kernels import tuning
from monograph.kernels.tuning import Tunable, TunedKey, chosen, no_choices, use_choices

CPU = torch.device("cpu")
SCALE = Tunable("scale", *({"group": group} for group in (16, 8, 4)))
SHIFT = Tunable("shift", {}, {"num_warps": 8})


def call_of(name, *sizes):
    return KernelCall(name, (TensorMeta(torch.bfloat16, sizes, (1,) * len(sizes), CPU),))


@pytest.fixture(autouse=True)
def forgotten():
    with no_choices():
        yield


class FakeDevice:
    """A GPU with the op `scale`, whose results and times depend on its group."""

    def __init__(self, results, times):
        self.results, self.times = results, times
        self.ran = []
        self.measured = 0

    def prepare(self, call):
        return self.make_run(call)

    def build(self, runs):
        for run in runs:
            with suppress(TritonError):
                run()

    def make_run(self, call):
        return lambda: self.run(*call.args)

    def run(self, form):
        self.ran.append(SCALE.choose(*form.shape)["group"])
        found = self.results[self.ran[-1]]
        if isinstance(found, Exception):
            raise found
        return torch.tensor(found)

    def measure(self, runs):
        self.measured += 1
        return [[slower * self.find_time(run) for run in runs] for slower in (1.0, 3.0, 2.0)]  # a GPU that gets warm

    def find_time(self, run):
        run()
        return self.times[self.ran[-1]]


SAME = {16: [1.0, -0.0], 8: [1.0, -0.0], 4: [1.0, -0.0]}


def test_the_fastest_candidate_is_used_from_now_on():
    device = FakeDevice(SAME, {16: 1.0, 8: 0.5, 4: 0.9})
    (found,) = tune_calls([call_of("scale", 3, 5)], device, ())
    assert found.key == TunedKey("scale", (3, 5))
    assert (found.settings, found.default_ms, found.best_ms) == ({"group": 8}, 2.0, 1.0)
    assert SCALE.choose(3, 5) == {"group": 8}
    assert SCALE.choose(3, 6) == {"group": 16}, "other sizes keep the default"


def test_the_default_stays_unless_another_is_faster_by_more_than_noise():
    (found,) = tune_calls([call_of("scale", 3)], FakeDevice(SAME, {16: 1.0, 8: 0.985, 4: 1.2}), ())
    assert found.settings == {"group": 16}


def test_a_candidate_with_one_other_bit_is_discarded_and_named(caplog):
    other = {**SAME, 8: [1.0, 0.0]}
    with caplog.at_level(logging.WARNING):
        (found,) = tune_calls([call_of("scale", 3)], FakeDevice(other, {16: 1.0, 8: 0.1, 4: 0.9}), ())
    assert found.settings == {"group": 4}
    assert "scale 3 with group 8 is discarded: its results differ" in caplog.text


def test_a_candidate_that_cannot_be_launched_is_skipped():
    broken = {**SAME, 8: TritonError("out of resource: shared memory")}
    (found,) = tune_calls([call_of("scale", 3)], FakeDevice(broken, {16: 1.0, 4: 0.9}), ())
    assert found.settings == {"group": 4}


def test_what_is_known_or_has_sizes_that_the_data_decides_is_not_tried():
    device = FakeDevice(SAME, dict.fromkeys(SAME, 1.0))
    unknown = KernelCall("scale", (TensorMeta(torch.bfloat16, ("u0", 4), (4, 1), CPU),))
    calls = [call_of("scale", 3), call_of("scale", 4), unknown]
    found = tune_calls(calls, device, {TunedKey("scale", (3,))})
    assert [each.key.sizes for each in found] == [(4,)]
    assert device.measured == 1


def test_settings_that_are_no_candidates_have_no_effect():
    use_choices({TunedKey("scale", (3,)): {"group": 1000}, TunedKey("shift", (3,)): {"num_warps": 8}})
    assert SCALE.choose(3) == {"group": 16}
    assert SHIFT.choose(3) == {"num_warps": 8}
    with chosen(TunedKey("shift", (3,)), {}):
        assert SHIFT.choose(3) == {}
    assert SHIFT.choose(3) == {"num_warps": 8}


def test_bits_are_compared_and_not_values():
    nan = torch.tensor([float("nan"), 1.0])
    assert has_same_bits(nan, nan.clone())
    assert not has_same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert not has_same_bits(torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16))
    assert not has_same_bits(torch.zeros(2), torch.zeros(3))


def test_tensors_to_tune_with_are_as_a_step_would_have_them():
    def form(dtype, shape, strides=None):
        return TensorMeta(dtype, shape, strides or torch.empty(shape, device="meta").stride(), CPU)

    names = ("rows", "weight", "inverse", "ends", "is_last")
    forms = (
        form(torch.bfloat16, (12, 4), (8, 1)),
        form(torch.float8_e4m3fn, (2, 3)),
        form(torch.int64, (6, 2)),
        form(torch.int32, (3,)),
        True,
    )
    rows, weight, inverse, ends, is_last = make_arguments(names, forms, CPU)
    assert (rows.stride(), rows.dtype, weight.dtype, is_last) == ((8, 1), torch.bfloat16, torch.float8_e4m3fn, True)
    assert rows.float().std() > 0.5
    assert sorted(inverse.flatten().tolist()) == list(range(12))
    assert ends.dtype == torch.int32 and ends[-1] == 12 and (ends.diff() > 0).all()
    assert torch.equal(make_arguments(names, forms, CPU)[0], rows), "the same each time"
    names, forms = ("q", "k", "segments"), (*[form(torch.bfloat16, (2, 16, 1, 8))] * 2, form(torch.int32, (2, 2, 7)))
    table = make_arguments(names, forms, CPU)[2]
    assert table.tolist() == [[[0, 4, 8, 12, 16, 16, 16]] * 2] * 2


def test_every_kernel_with_settings_has_a_name_of_its_own_and_candidates_of_one_form():
    modules = [import_named(f"monograph.kernels.{path.stem}") for path in Path(tuning.__file__).parent.glob("*_gpu.py")]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Tunable)]
    assert len(found) > 15
    assert len({each.kernel for each in found}) == len(found)
    for each in found:
        assert len({tuple(settings) for settings in each.candidates if settings}) == 1, each.kernel
        assert len({tuple(settings.values()) for settings in each.candidates}) == len(each.candidates) > 1, each.kernel

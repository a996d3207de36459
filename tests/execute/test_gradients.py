"""Where gradients of micro-batches go: the first is the buffer, others are added, a replay finds the same buffers."""

import torch

from monograph.execute.gradients import Gradients


def make():
    parameters = {"a": torch.nn.Parameter(torch.zeros(3)), "b": torch.nn.Parameter(torch.zeros(2, 2))}
    return Gradients(parameters), parameters


def test_the_first_gradient_becomes_the_buffer_and_others_are_added():
    gradients, parameters = make()
    first = torch.ones(3)
    assert gradients.is_empty
    gradients.add("a", first)
    assert not gradients.is_empty and parameters["a"].grad is first
    gradients.add("a", torch.full((3,), 2.0))
    assert parameters["a"].grad is first and first.tolist() == [3.0] * 3


def test_a_part_of_something_larger_is_copied():
    gradients, parameters = make()
    bucket = torch.arange(10.0)
    gradients.add("a", bucket[2:5])
    bucket.zero_()
    assert parameters["a"].grad.tolist() == [2.0, 3.0, 4.0]


def test_buffers_can_be_used_again_after_an_update_dropped_them():
    gradients, parameters = make()
    for name, parameter in parameters.items():
        gradients.add(name, torch.ones_like(parameter))
    buffers = gradients.taken()
    for parameter in parameters.values():
        parameter.grad = None
    assert gradients.is_empty
    gradients.restore(buffers)
    assert all(parameters[name].grad is buffer for name, buffer in buffers.items())

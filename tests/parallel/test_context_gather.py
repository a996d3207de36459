"""What latent attention gathers: chosen by the estimated time of a layer, equal within rounding either way."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from monograph.machine.table import MACHINES
from monograph.parallel.context_gather import decide_gather
from monograph.parallel.context_latent import HeadSizes, find_gradients, make_keys
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe

SIZES = {"tokens": 32768, "dtype": "bfloat16"}
H100 = MACHINES["H100"]


def decide(mesh, machine, recipe="deepseek_v3_671b"):
    return decide_gather(mesh, load_recipe(recipe).model, machine=machine, **SIZES).cp_gather


def test_slow_links_gather_latents_and_slow_matmuls_keys_and_values():
    slow_link = replace(H100, link_gb_per_second=1.0)
    slow_matmul = replace(H100, matmul_fraction=H100.matmul_fraction / 1000, matmul_points=())
    assert decide(Mesh(cp=2), slow_link) == "latent"
    assert decide(Mesh(cp=2), slow_matmul) == "keys_values"


def test_what_is_asked_for_is_done_and_what_has_no_choice_needs_none():
    slow_link = replace(H100, link_gb_per_second=1.0)
    assert decide(Mesh(cp=2, cp_gather="keys_values"), slow_link) == "keys_values"
    assert decide(Mesh(cp=2, cp_gather="latent"), H100) == "latent"
    for mesh, recipe in (
        (Mesh(), "deepseek_v3_671b"),
        (Mesh(cp=2, cp_method="ulysses"), "deepseek_v3_671b"),
        (Mesh(cp=2), "llama3_8b"),
    ):
        assert decide(mesh, slow_link, recipe) == "keys_values"


@pytest.mark.parametrize("heads", [1, 3])
def test_gradients_of_latents_and_of_the_weight_are_those_of_autograd(heads):
    sizes, shared = HeadSizes(own=4, values=6), 2
    latents = torch.randn(2, 5, 8 + shared, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(heads * sum(sizes), 8, dtype=torch.float64, requires_grad=True)
    keys, values = make_keys(latents, weight, sizes)
    made = F.linear(latents[..., :8], weight).unflatten(-1, (heads, -1))
    assert torch.equal(keys[..., :4], made[..., :4]) and torch.equal(values, made[..., 4:])
    assert torch.equal(keys[:, :, 0, 4:], latents[..., 8:])
    grads = torch.randn_like(keys), torch.randn_like(values)
    expected = torch.autograd.grad((keys, values), (latents, weight), grads)
    with torch.no_grad():
        found = find_gradients(*grads, latents, weight, sizes)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)

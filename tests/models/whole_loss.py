"""The gradient of a model's whole training loss, auxiliary losses included, beside that of transformers' model."""

from pathlib import Path
from typing import Any

import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from monograph.models.hf_tensors import export_tensors
from tests.models.family_parity import check_close, read_ours, write_model


def check_whole_loss(folder: Path, name: str, values: dict[str, Any], *, router: str = "") -> None:
    """What training differentiates, and its gradient, within 1e-5 of what transformers' `forward(labels=...)` makes.

    transformers pools the layers' counts before it multiplies; ours is the mean of the layers' losses (decision 0032).
    So its own function is applied to each layer, and of its coefficient nothing is changed. `router` is a name in the
    gradients that must be compared; without experts every tensor is.
    """
    theirs = write_model(folder, name, values)
    family, config, ours = read_ours(folder)
    generator = torch.Generator().manual_seed(1)
    tokens, labels = torch.randint(0, values["vocab_size"], (2, 2, 48), generator=generator)
    labels[0, 5:9] = -100
    output = theirs(tokens, labels=labels, shift_labels=labels)
    expected = output.loss
    if getattr(output, "aux_loss", None) is not None:
        top_k = theirs.config.num_experts_per_tok
        apart = [load_balancing_loss_func((each,), theirs.num_experts, top_k) for each in output.router_logits]
        expected = expected + theirs.router_aux_loss_coef * (sum(apart) / len(apart) - output.aux_loss)
    found = ours(tokens, labels).objective
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    expected.backward()
    found.backward()
    by_name = {key: each.grad for key, each in theirs.named_parameters()}
    gradients = {key: each.grad for key, each in ours.named_parameters() if each.grad is not None}
    compared = {key: each for key, each in export_tensors(family.entries(config), gradients).items() if key in by_name}
    # stacked experts have other names in memory than in a file
    assert any(router in key for key in compared) if router else compared.keys() == by_name.keys()
    for key, gradient in compared.items():
        check_close(key, gradient, by_name[key])

"""A random tiny model of transformers', and ours of the same weights: logits, gradients, the way back."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from monograph.config.configurable import check_config
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_tensors import export_tensors, import_tensors
from monograph.models.init import reset

TOLERANCE = 1e-5


def write_model(folder: Path, name: str, values: dict[str, Any]) -> torch.nn.Module:
    """A model of theirs in fp32, with weights large enough that a wrong formula shows, saved as they save it."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **values, attn_implementation="eager", experts_implementation="eager"
    )
    kind = name.removesuffix("Text")
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.dim() == 1:
                start = parameter.mean() if "norm" in path else 0.0  # of norms that scale by 1 + weight it is 0
                parameter.copy_(start + 0.3 * torch.randn_like(parameter))
            elif path.endswith("_bias"):
                parameter.normal_(std=0.5)
            else:
                parameter.normal_(std=max(parameter.shape[-2:]) ** -0.5)
    model.save_pretrained(folder)
    return model


def read_ours(folder: Path) -> tuple[Any, Any, torch.nn.Module]:
    """The map, our config and our model of a folder."""
    hf, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    family = find_family(hf["model_type"])
    config = family.from_hf_config(hf)
    check_config(config)
    ours = config.build()
    reset(ours)
    ours.load_state_dict(import_tensors(family.entries(config), tensors), strict=not config.tied_embeddings)
    return family, config, ours


def check_parity(folder: Path, name: str, values: dict[str, Any], *, length: int = 48) -> None:
    """Logits, and the gradient of every tensor, within 1e-5 of the largest of each."""
    theirs = write_model(folder, name, values)
    family, config, ours = read_ours(folder)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, values["vocab_size"], (2, length), generator=generator)
    expected, found = theirs(tokens).logits, ours.predict(tokens)
    assert expected.abs().max() > 0.5
    check_close("logits", found, expected)
    toward = torch.randn(expected.shape, generator=generator)
    (expected * toward).sum().backward()
    (found * toward).sum().backward()
    gradients = {key: each.grad for key, each in ours.named_parameters() if each.grad is not None}
    by_name = dict(theirs.named_parameters())
    exported = export_tensors(family.entries(config), gradients)
    assert set(exported) == set(by_name), set(exported) ^ set(by_name)
    for key, gradient in exported.items():
        check_close(key, gradient, by_name[key].grad)


def check_close(what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    scale = max(expected.abs().max().item(), 1e-3)
    difference = (found - expected).abs().max().item()
    assert difference <= TOLERANCE * scale, f"{what}: {difference:.3g} of {scale:.3g}"


def check_way_back(folder: Path, name: str, values: dict[str, Any]) -> None:
    """What we export has their bits, and their class loads it and computes the same."""
    write_model(folder, name, values)
    hf, tensors = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    config = find_family(hf["model_type"]).from_hf_config(hf)
    family = find_family_of(config)
    entries = family.entries(config)
    exported = export_tensors(entries, import_tensors(entries, tensors))
    needed = {key for key in tensors if not family.is_ignored(config, key)}
    assert exported.keys() == needed
    assert all(torch.equal(exported[key], tensors[key]) for key in needed)
    written = family.to_hf_config(config)
    assert family.from_hf_config(written) == config
    again = folder / "exported"
    again.mkdir()
    (again / "config.json").write_text(json.dumps(written))
    contiguous = {key: value.contiguous() for key, value in exported.items()}
    save_file(contiguous, again / "model.safetensors", {"format": "pt"})
    settings: dict[str, Any] = {
        "attn_implementation": "eager",
        "experts_implementation": "eager",
        "dtype": torch.float32,
    }
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(again, output_loading_info=True, **settings)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    original = transformers.AutoModelForCausalLM.from_pretrained(folder, **settings)
    tokens = torch.arange(40).remainder(values["vocab_size"]).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, original.eval()(tokens).logits)

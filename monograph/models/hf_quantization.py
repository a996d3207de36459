"""What a config.json may say about quantized weights: fp8 with one scale for each block, or MXFP4 (hf_mxfp4.py).

Loads without torch.
"""

from collections.abc import Iterable

from monograph.models.hf_reader import HfReader

SCALE_BLOCK = 128
"""Rows and columns of a weight that share a scale."""
_NEEDED = ("quant_method", "weight_block_size")
_UNCONVERTED = ("modules_to_not_convert", "ignored_layers")


def check_quantization(given: HfReader | None) -> None:
    """Refuse a `quantization_config` that asks for anything but the fp8 format described above."""
    if given is None or not given.values:
        return
    for key, *served in (
        ("quant_method", "fp8"),
        ("weight_block_size", [SCALE_BLOCK, SCALE_BLOCK]),
        ("activation_scheme", "dynamic"),
        ("fmt", "e4m3"),
        ("scale_fmt", "float", "ue8m0"),
        ("expert_dtype", "fp8"),
        ("modules_to_convert", []),
    ):
        if (key in _NEEDED or given.has(key)) and given.get(key) not in served:
            only = f"only fp8 in blocks of {SCALE_BLOCK} x {SCALE_BLOCK} with one scale each can be read"
            raise given.refuse(key, f"{only}; use a checkpoint in bfloat16")
    for key in _UNCONVERTED:
        if given.has(key) and not _is_names(given.values[key]):
            raise given.refuse(key, "expected a list of modules' names")
    given.ignore("dequantize")
    given.finish()


def check_mxfp4(given: HfReader | None) -> None:
    """Refuse a `quantization_config` that asks for anything but experts in MXFP4."""
    if given is None or not given.values:
        return
    if given.get("quant_method") != "mxfp4":
        raise given.refuse("quant_method", "this family is read in mxfp4; use such a checkpoint, or one in bfloat16")
    names = given.get("modules_to_not_convert")
    if names is not None and not _is_names(names):
        raise given.refuse("modules_to_not_convert", "expected a list of modules' names")
    given.ignore("dequantize")
    given.finish()


def _is_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def find_unconverted(quantization: dict[str, list[str]] | None) -> tuple[str, ...]:
    """The modules that a checked `quantization_config` leaves in the model's own dtype."""
    return tuple(name for key in _UNCONVERTED for name in (quantization or {}).get(key) or ())


def is_listed(name: str, modules: Iterable[str]) -> bool:
    """Whether a weight belongs to one of these modules: `lm_head`, `model.layers.0`, `mlp.gate`."""
    return any(f".{module}." in f".{name}" for module in modules)

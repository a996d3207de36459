"""How the weights of a Hugging Face folder are stored: checked before the first byte is written."""

from collections.abc import Sequence

from monograph.errors import CheckpointError
from monograph.models.hf_fp8 import (
    FP8_DTYPE,
    SCALE_SUFFIX,
    Stored,
    find_bad_scales,
    find_problem,
    find_unconverted,
    is_listed,
)
from monograph.train.checkpoint.hf_folder import CONFIG_NAME, HfFolder
from monograph.train.checkpoint.verify import list_some


def check_fp8(folder: HfFolder, needed: Sequence[str]) -> None:
    """Refuse weights of other types than those we read, and fp8 weights whose scales are missing or cannot be right.

    Scales are read here, a tensor at a time: they are 1/16384 of the weights.
    """
    quantization = folder.config.get("quantization_config")
    unconverted = find_unconverted(quantization)
    problems = []
    for name in needed:
        weight, scale = folder.specs[name], folder.specs.get(name + SCALE_SUFFIX)
        problem = find_problem(
            name, Stored(weight.dtype, weight.shape), Stored(scale.dtype, scale.shape) if scale else None
        )
        if not problem and weight.dtype == FP8_DTYPE:
            if not quantization:
                problem = f"{name} is stored in fp8, but {CONFIG_NAME} has no quantization_config"
            elif is_listed(name, unconverted):
                problem = f"{name} is stored in fp8, but modules_to_not_convert lists its module"
            else:
                problem = find_bad_scales(name, folder[name + SCALE_SUFFIX])
        if problem:
            problems.append(problem)
    if problems:
        raise CheckpointError(
            f"the weights in {folder.path} cannot be used as they are stored",
            why=list_some("different", problems),
            do="download the folder again, or use a checkpoint in bfloat16",
        )

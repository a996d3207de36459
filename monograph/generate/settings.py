"""How a model's own folder says that texts end and tokens are chosen: generation_config.json. Loads without torch."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.system.foreign_text import show
from monograph.train.checkpoint.hf_assets import GENERATION_NAME
from monograph.train.checkpoint.model_source import read_json
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0, None),
    "bad_words_ids": (None, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "min_length": (0, None),
    "min_new_tokens": (0, None),
    "num_beams": (1, None),
    "encoder_repetition_penalty": (1.0, 1, None),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0, 1),
}
"""Settings that change which token comes next, and are not served here: the values that ask for nothing."""


@dataclass(frozen=True)
class GenerationSettings:
    """What a model's folder says."""

    stop_ids: frozenset[int] = frozenset()
    repetition_penalty: float = 1.0
    unserved: dict[str, Any] = field(default_factory=dict)
    """Settings that transformers would follow and we do not."""


def read_generation_settings(tokenizer: TokenizerConfig | None) -> GenerationSettings:
    """What lies beside a tokenizer about generation; nothing where there is no such file."""
    if not isinstance(tokenizer, StandardTokenizerConfig) or not tokenizer.path:
        return GenerationSettings()
    path = Path(tokenizer.path)
    path = (path if path.is_dir() else path.parent) / GENERATION_NAME
    if not os.path.lexists(path):
        return GenerationSettings()
    content = read_json(path)
    ends = content.get("eos_token_id")
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    penalty = content.get("repetition_penalty")
    penalty = 1.0 if penalty is None else penalty
    if not all(type(each) is int for each in ends) or type(penalty) not in (int, float) or not 1e-2 <= penalty <= 100:
        raise ConfigError(
            f"{show(path)} cannot be used",
            why=show(f"eos_token_id is {ends!r:.80} and repetition_penalty is {penalty!r:.80}"),
            do="repair it, or move it away",
        )
    unserved = {key: content[key] for key, neutral in NEUTRAL.items() if key in content and content[key] not in neutral}
    return GenerationSettings(frozenset(ends), float(penalty), unserved)

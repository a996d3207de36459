"""Reading a Hugging Face config.json key by key: every value is checked, and a key that nothing reads is refused.

A key we do not know may change what the model computes, and weights that are computed with differently are worthless.
So a key is read, required to have the one value we can honour, listed in NO_EFFECT, or refused by name.
"""

import math
from collections.abc import Mapping
from typing import Any

from monograph.errors import ConfigError, find_nearest
from monograph.models.config import MAX_COUNT, MAX_SIZE, MAX_TOKENS

_MADE_BY = """
    architectures auto_map name_or_path _name_or_path _commit_hash transformers_version transformers.js_config
    custom_pipelines unsloth_fixed unsloth_version dtype torch_dtype use_bfloat16 tokenizer_class prefix
"""
_IMPLEMENTATIONS = """
    attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled experts_implementation
    use_cache return_dict output_attentions output_hidden_states torchscript
    gradient_checkpointing pretraining_tp ep_size chunk_size_feed_forward is_decoder
"""
_TOKENS_LABELS_LOSSES = """
    bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id id2label label2id
    num_labels problem_type finetuning_task task_specific_params
"""
_GENERATION = """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_return_sequences output_scores remove_invalid_values repetition_penalty return_dict_in_generate
    suppress_tokens target_lookbehind temperature top_k top_p typical_p model_max_length
"""
NO_EFFECT = frozenset(f"{_MADE_BY} {_IMPLEMENTATIONS} {_TOKENS_LABELS_LOSSES} {_GENERATION}".split())
"""Keys that do not change the logits of any of our families, whatever their value."""


class HfReader:
    """One JSON object of a config.json; remembers which keys were read, so that `finish` can refuse the others."""

    def __init__(self, values: Mapping[str, Any], *, path: str = "") -> None:
        self.values, self._path, self._read = values, path, set[str]()
        self.because = ""
        """The setting that decides which keys of this object are read, for errors about the others."""

    def name(self, key: str) -> str:
        """The key as errors show it: 'rope_scaling.factor'."""
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self.get(key) is not None

    def get(self, key: str) -> Any:
        """The value as it stands, None when there is none."""
        self._read.add(key)
        return self.values.get(key)

    def size(self, key: str) -> int:
        """A number of channels that the model cannot be described without."""
        return self._integer(key, 1, MAX_SIZE)

    def count(self, key: str, *, least: int = 1) -> int:
        """A number of heads, layers or experts that the model cannot be described without."""
        return self._integer(key, least, MAX_COUNT)

    def tokens(self, key: str) -> int:
        """A number of vocabulary entries or positions that the model cannot be described without."""
        return self._integer(key, 1, MAX_TOKENS)

    def _integer(self, key: str, least: int, most: int) -> int:
        value = self._need(key)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.refuse(key, f"expected a whole number between {least} and {most}")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number; a missing key takes the default, where there is one."""
        if default is not None and key not in self.values:
            self._read.add(key)
            return default
        value = self._need(key)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self.refuse(key, "expected a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.refuse(key, "expected a finite number")
        return number

    def boolean(self, key: str, *, default: bool | None = None) -> bool:
        """True or false; a missing key takes the default, where there is one."""
        if default is not None and key not in self.values:
            self._read.add(key)
            return default
        value = self._need(key)
        if not isinstance(value, bool):
            raise self.refuse(key, "expected true or false")
        return value

    def section(self, key: str) -> "HfReader | None":
        """A nested object, to be read and finished on its own; None when there is none."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "expected an object")
        return HfReader(value, path=self.name(key))

    def require(self, key: str, *served: Any) -> None:
        """Refuse any other value than those our models can honour; a missing key asks for nothing."""
        self._read.add(key)
        if key in self.values and self.values[key] not in served:
            choices = " or ".join("null" if value is None else repr(value) for value in served)
            raise self.refuse(key, f"this family is built for {choices} only")

    def require_derived(self, key: str, value: int, origin: str) -> None:
        """Refuse another value than the one that follows from other keys; a missing or null key is right."""
        if self.get(key) not in (None, value):
            raise self.refuse(key, f"{origin} make it {value}")

    def ignore(self, *keys: str) -> None:
        """Keys that mean nothing to this model, whatever their value."""
        self._read.update(keys)

    def refuse(self, key: str, why: str) -> ConfigError:
        """The error for a value that cannot be honoured."""
        return ConfigError(f"config.json says '{self.name(key)}' is {self.values.get(key)!r:.200}", why=why)

    def finish(self) -> None:
        """Refuse the keys that nothing has read."""
        unknown = sorted(str(key) for key in set(self.values) - self._read - (set() if self._path else NO_EFFECT))
        if unknown:
            near = find_nearest(unknown[0], self._read)
            raise ConfigError(
                f"config.json has '{self.name(unknown[0])}'"
                + (f" and {len(unknown) - 1} more unknown keys: {', '.join(unknown[1:9])}" if unknown[1:] else ""),
                why=f"{self.because or 'this family'} has no such setting here, and it may change what is computed",
                do=(f"did you mean '{near}'? " if near else "")
                + "remove it from config.json if the model computes the same without it",
            )

    def _need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            missing = f"config.json says '{self.name(key)}' is null"
            raise ConfigError(
                missing if key in self.values else f"config.json has no '{self.name(key)}'",
                why=f"{self.because or 'the model'} cannot be built without it",
            )
        return value

"""`monograph generate FOLDER --prompt TEXT`: what a model writes."""

import json
from typing import Any

from monograph.commands.model_arguments import GenerateArguments
from monograph.commands.open_model import find_source, load, memory_of, suggest_fewer
from monograph.errors import ConfigError, DataError
from monograph.generate.load import LoadedModel, build_tokenizer, encode_prompt
from monograph.generate.loop import Generation, check_lengths, generate
from monograph.generate.sampling import Sampling
from monograph.generate.settings import GenerationSettings, read_generation_settings
from monograph.log import get_log, set_up_log
from monograph.system.console import print_content
from monograph.system.foreign_text import escape_json

log = get_log(__name__)


def generate_command(arguments: GenerateArguments) -> int:
    """Print every prompt with what follows it."""
    set_up_log()
    source = find_source(arguments)
    settings = read_generation_settings(source.tokenizer)
    for key, value in settings.unserved.items():
        log.warning("generation_config.json says %s is %s, which is not supported here and ignored", key, value)
    prompts, tokenizer = arguments.prompts(), build_tokenizer(source)
    try:
        encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
        check_lengths(source.model, encoded, arguments.max_new_tokens)
    except (ConfigError, DataError) as error:
        if not arguments.prompt_file:
            raise
        raise ConfigError(f"prompt_file {arguments.prompt_file}: {error.what}", why=error.why, do=error.do) from None
    length = max(map(len, encoded)) + arguments.max_new_tokens
    loaded = load(arguments, source, length=length, tokenizer=tokenizer)
    with memory_of(loaded, do=suggest_fewer(arguments)):
        for start in range(0, len(prompts), arguments.batch_size):
            part = slice(start, start + arguments.batch_size)
            rows = generate(
                loaded.model,
                encoded[part],
                device=loaded.device,
                max_new_tokens=arguments.max_new_tokens,
                stop_ids={loaded.tokenizer.eos_id, *settings.stop_ids},
                sampling=make_sampling(arguments, settings),
                use_cache=arguments.cache,
                first_row=start,
            )
            for prompt, row in zip(prompts[part], rows, strict=True):
                print_content(render(prompt, row, loaded, as_json=arguments.json))
    return 0


def make_sampling(arguments: GenerateArguments, settings: GenerationSettings) -> Sampling:
    """How tokens are chosen: as the flags say, and the model's folder where they leave it open."""
    return Sampling(
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        repetition_penalty=arguments.repetition_penalty or settings.repetition_penalty,
        seed=arguments.seed,
    )


def render(prompt: str, row: Generation, loaded: LoadedModel, *, as_json: bool) -> str:
    """A row as text that continues its prompt, or as JSON."""
    text = loaded.decode_after(row.prompt, row.tokens)
    if not as_json:
        return prompt + text
    value: dict[str, Any] = {"prompt": prompt, "text": text, "tokens": row.tokens, "ended": row.is_ended}
    return escape_json(json.dumps(value, ensure_ascii=False, allow_nan=False))

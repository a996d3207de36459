"""Commands of pages, read as the command line would read them."""

import functools
import json
import re
import tempfile
from pathlib import Path

from monograph.cli import make_options, place_leading, take_imports
from monograph.commands.request import read_request
from monograph.commands.table import find_command
from monograph.config.overrides import apply_overrides, split_flags
from monograph.models.llama3.hf import to_hf_config
from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.checkpoint.hf_tokenizer_files import make_byte_tokenizer


def find_commands(text):
    """The `monograph ...` commands of a page's code blocks, without prompts and comments; a torchrun's too."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = (re.match(r"(?:\$ )?(?:torchrun .* -m )?monograph (.*)", line) for line in lines)
    return [match[1] for match in found if match]


@functools.cache
def make_model_folder():
    """What a reader would have: a folder with a model, as far as a command line looks at it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps(to_hf_config(llama3_debugmodel().model)))
    (folder / "tokenizer.json").write_bytes(make_byte_tokenizer(add_bos=False))
    (folder / "model.safetensors").touch()
    return str(folder)


def check_command(words):
    """Read a command as the command line would, up to the point where it would start."""
    _, words = take_imports(words)
    command, rest = find_command(words)
    rest = [word for word in rest if word != "--help"]
    if "--model.from" in rest:
        rest[rest.index("--model.from") + 1] = make_model_folder()
    if command.takes_recipe:
        read_request(place_leading(command, rest), make_options(command))
    elif command.arguments is not None:
        count = len(command.positional)  # files that a reader would have
        apply_overrides(command.arguments(), split_flags(rest[count:]))
        assert not any(word.startswith("--") for word in rest[:count])
    else:
        assert not rest

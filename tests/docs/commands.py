"""Commands of pages, read as the command line would read them."""

import re

from monograph.cli import make_options, place_leading, take_imports
from monograph.commands.request import read_request
from monograph.commands.table import find_command
from monograph.config.overrides import apply_overrides, split_flags


def find_commands(text):
    """The `monograph ...` commands of a page's code blocks, without prompts and comments; a torchrun's too."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.M | re.S)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = (re.match(r"(?:\$ )?(?:torchrun .* -m )?monograph (.*)", line) for line in lines)
    return [match[1] for match in found if match]


def check_command(words):
    """Read a command as the command line would, up to the point where it would start."""
    _, words = take_imports(words)
    command, rest = find_command(words)
    rest = [word for word in rest if word != "--help"]
    if command.takes_recipe:
        read_request(place_leading(command, rest), make_options(command))
    elif command.arguments is not None:
        count = len(command.positional)  # files that a reader would have
        apply_overrides(command.arguments(), split_flags(rest[count:]))
        assert not any(word.startswith("--") for word in rest[:count])
    else:
        assert not rest

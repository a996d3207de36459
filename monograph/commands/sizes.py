"""Sizes as people write them: 80GiB, 141GB. Loads without torch."""

import re

from monograph.errors import ConfigError

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """The number of bytes that a size with a unit stands for."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS or not float(found[1]):
        raise ConfigError(f"the size is {text!r}", why="it is a number and a unit", do="for example 80GiB or 141GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])

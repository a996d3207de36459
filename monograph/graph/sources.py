"""The line of model code a node comes from, where the capture was asked to remember it."""

import re
from pathlib import Path

import torch
from torch.fx import Node

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = Path(__file__).parent.parent.parent


def source_of(node: Node) -> str:
    """`monograph/models/router.py:52`: the innermost line outside of torch; empty when it was not recorded."""
    frames = [found for found in _FRAME.findall(node.stack_trace or "") if not found[0].startswith(_TORCH)]
    if not frames:
        return ""
    path, line = frames[-1]
    for folder in (_PACKAGE, Path.cwd()):
        if Path(path).is_relative_to(folder):
            path = str(Path(path).relative_to(folder))
    return f"{path}:{line}"

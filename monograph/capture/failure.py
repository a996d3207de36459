"""Why a step cannot be captured, in words: the op, the module and the line of model code it comes from."""

import os
import traceback
from pathlib import Path

import torch
from torch.fx import Node

from monograph.errors import EXIT_WRONG_INPUT, MonographError
from monograph.graph.query import is_random
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of

_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])
DO = "change that line, or train op by op: --compile.mode eager"


class CaptureError(MonographError):
    """The model does something that cannot be a node of a graph."""

    exit_code = EXIT_WRONG_INPUT


def explain_failure(error: Exception) -> CaptureError:
    """What stopped a capture; torch's own reports run over many lines and name neither module nor remedy."""
    op = getattr(error, "func", None)
    place = next((note.removeprefix("in ") for note in getattr(error, "__notes__", []) if note.startswith("in ")), "")
    frame = find_model_frame(error)
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    what = f"{op or 'a line'} of {place or 'the model'} cannot be captured"
    if "convert all Tensors to FakeTensors" in reason:
        return CaptureError(
            f"{what}: {frame.line}" if frame and frame.line else what,
            why="it reads a parameter or another tensor that is not an input of the step",
            do="call every unit of the model through call(unit, ...), and register tables as buffers of a module",
        )
    if "data-dependent" in reason:
        reason = "control flow there depends on tensor values, and a captured graph is the same on every step"
    return CaptureError(
        f"{what}: {frame.line}" if frame and frame.line else what,
        why=f"{type(error).__name__}: {reason}" + (f" ({frame.filename}:{frame.lineno})" if frame else ""),
        do=DO,
    )


def is_of_model(error: Exception) -> bool:
    """Whether a model's code raised the error, or torch called by it; errors of capture itself keep their traceback."""
    frame = find_model_frame(error)
    inside = Path(frame.filename).relative_to(_PACKAGE).parts[0] if frame and _is_ours(frame.filename) else "models"
    return inside in ("models", "kernels", "parallel")


def _is_ours(filename: str) -> bool:
    return filename.startswith(f"{_PACKAGE}{os.sep}")


def find_model_frame(error: Exception) -> traceback.FrameSummary | None:
    """The innermost frame that is not torch's own: what a user can change."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_TORCH)]
    return frames[-1] if frames else None


def refuse_random_ops(graph: StepGraph) -> None:
    """Refuse random numbers."""
    for node in graph.nodes:
        if is_random(node):
            raise refuse_random(node, tag_of(node).path)


def refuse_random(node: Node, path: str) -> CaptureError:
    """The error about an op that draws random numbers."""
    return CaptureError(
        f"{node.target} of {path or 'the model'} cannot be captured",
        why="it draws from a global generator, and recomputation would draw other numbers",
        do="use mg.random_uniform or mg.Dropout, which draw by seed and position; "
        "or train op by op: --compile.mode eager",
    )


def refuse_write(node: Node, path: str) -> CaptureError:
    """The error about an op that writes into memory that others read."""
    return CaptureError(
        f"{node.target} of {path or 'the model'} cannot be captured",
        why="it writes in place into a tensor that is aliased elsewhere",
        do="return the new value instead, or train op by op: --compile.mode eager",
    )

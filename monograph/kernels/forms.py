"""What our ops are to a compiler: torch's ops, which it fuses with their neighbours better than any kernel of ours.

Cross entropy is not among them: there our kernel is faster than what the compiler makes (docs/decisions/0008).
"""

from collections.abc import Callable
from typing import Any

from monograph.compat.compiler import add_decompositions
from monograph.kernels.gate import GATE, GATE_BACKWARD, plain_gate, plain_gate_backward
from monograph.kernels.rotation import ROTATE, turn

PLAIN_FORMS: dict[Any, Callable[..., Any]] = {
    GATE: plain_gate,
    GATE_BACKWARD: plain_gate_backward,
    ROTATE: turn,
}


def teach_compiler() -> None:
    """Let Inductor take our ops apart. Doing it twice changes nothing."""
    add_decompositions(PLAIN_FORMS)

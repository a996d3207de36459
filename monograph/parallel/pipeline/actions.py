"""The actions of a pipeline schedule and their text: `3F0` is the forward of micro-batch 0 on stage 3. Without torch.

0F2       forward                       0SEND_F2   send the carry to the next stage
0B2       backward                      1RECV_F2   receive it there
0I2       gradient of the carry only    1SEND_B2   send the gradient of the carry to the stage before
0W2       gradients of the parameters   0RECV_B2   receive it there
1F3+0B2   a forward and a backward of one rank as one action
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from monograph.errors import ConfigError


class ActionKind(StrEnum):
    """What an action does; the values are its letters in a schedule's text."""

    FORWARD = "F"
    BACKWARD = "B"
    INPUT_GRAD = "I"
    WEIGHT_GRAD = "W"
    SEND_CARRY = "SEND_F"
    RECV_CARRY = "RECV_F"
    SEND_GRAD = "SEND_B"
    RECV_GRAD = "RECV_B"
    FORWARD_BACKWARD = "F+B"


SENDS = (ActionKind.SEND_CARRY, ActionKind.SEND_GRAD)
RECEIVES = (ActionKind.RECV_CARRY, ActionKind.RECV_GRAD)
PARTNER_KINDS = {
    ActionKind.SEND_CARRY: ActionKind.RECV_CARRY,
    ActionKind.SEND_GRAD: ActionKind.RECV_GRAD,
    ActionKind.RECV_CARRY: ActionKind.SEND_CARRY,
    ActionKind.RECV_GRAD: ActionKind.SEND_GRAD,
}
_PLAIN = re.compile(r"([0-9]{1,9})(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)([0-9]{1,9})")


@dataclass(frozen=True, order=True)
class Action:
    """One entry of a rank's list."""

    stage: int
    kind: ActionKind
    micro_batch: int
    backward: "Action | None" = None
    """Of a merged forward and backward: the backward."""

    def __str__(self) -> str:
        if self.backward is not None:
            return f"{self.stage}F{self.micro_batch}+{self.backward}"
        return f"{self.stage}{self.kind.value}{self.micro_batch}"

    @property
    def is_transfer(self) -> bool:
        """Whether it moves a value between ranks."""
        return self.kind in PARTNER_KINDS

    @property
    def parts(self) -> "tuple[Action, ...]":
        """The actions it consists of; itself, unless it is merged."""
        if self.backward is None:
            return (self,)
        return Action(self.stage, ActionKind.FORWARD, self.micro_batch), self.backward

    @property
    def partner(self) -> "Action":
        """The other end of a send or receive."""
        up = self.kind in (ActionKind.SEND_CARRY, ActionKind.RECV_GRAD)
        return Action(self.stage + (1 if up else -1), PARTNER_KINDS[self.kind], self.micro_batch)


def forward(stage: int, micro_batch: int) -> Action:
    """The forward of a micro-batch."""
    return Action(stage, ActionKind.FORWARD, micro_batch)


def backward(stage: int, micro_batch: int) -> Action:
    """The whole backward of a micro-batch."""
    return Action(stage, ActionKind.BACKWARD, micro_batch)


def input_grad(stage: int, micro_batch: int) -> Action:
    """The part of backward that the stage before waits for."""
    return Action(stage, ActionKind.INPUT_GRAD, micro_batch)


def weight_grad(stage: int, micro_batch: int) -> Action:
    """The rest of backward."""
    return Action(stage, ActionKind.WEIGHT_GRAD, micro_batch)


def merge(first: Action, second: Action) -> Action:
    """A forward and a backward as one action."""
    return Action(first.stage, ActionKind.FORWARD_BACKWARD, first.micro_batch, second)


def parse_action(text: str) -> Action:
    """An action from its text; an error for anything else."""
    left, plus, right = text.strip().partition("+")
    if plus:
        if "+" in right:
            raise _refuse(text)
        first, second = parse_action(left), parse_action(right)
        if first.kind is not ActionKind.FORWARD or second.kind is not ActionKind.BACKWARD:
            raise _refuse(text)
        return merge(first, second)
    match = _PLAIN.fullmatch(left)
    if match is None:
        raise _refuse(text)
    return Action(int(match[1]), ActionKind(match[2]), int(match[3]))


def _refuse(text: str) -> ConfigError:
    return ConfigError(
        f"'{text.strip()[:40]}' is not an action of a pipeline schedule",
        why="an action is a stage, one of F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, and a micro-batch",
        do="for example 0F2, 1B0, 0SEND_F2, or 1F3+0B2 for a merged forward and backward",
    )

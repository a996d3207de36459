"""The model of tests.kit.paced; apart from its config, which loads without torch."""

import os
import time
from typing import Any

from monograph.models.llama3.model import Llama3
from tests.kit.paced import PacedConfig


class Paced(Llama3):
    """Sleeps, and fails where it is told to."""

    Config = PacedConfig
    config: PacedConfig

    def __init__(self, config: PacedConfig) -> None:
        super().__init__(config)
        self.calls = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        time.sleep(self.config.pause_seconds)
        if os.environ.get("RANK") == str(self.config.fail_on_rank) and self.calls == self.config.fail_at_call:
            raise ArithmeticError(f"planted on rank {self.config.fail_on_rank}")
        return super().forward(*args, **kwargs)

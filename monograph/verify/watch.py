"""Records what modules produce while a step runs, so that two runs can be compared module by module."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from monograph.models.decoder import Decoder
from monograph.models.router import Choice, Router

_PARTS = ("attention_norm", "attention", "ffn_norm", "feed_forward", "moe")


class Recording:
    """Outputs by module path, one entry per micro-batch, in forward order; and the experts each router chose."""

    def __init__(self) -> None:
        self.outputs: dict[str, list[Tensor]] = {}
        self.choices: dict[str, list[Tensor]] = {}

    def add(self, path: str, result: Any) -> None:
        """Keep one module's result."""
        if isinstance(result, Choice):
            self.choices.setdefault(path, []).append(result.experts.detach().cpu())
            return
        stream = result[0] if isinstance(result, tuple) else result
        self.outputs.setdefault(path, []).append(stream.detach().float().cpu())


@contextmanager
def recorded(model: Decoder) -> Iterator[Recording]:
    """Record the embedding, every block with its parts, and the routers while the block runs."""
    recording = Recording()
    handles = [
        module.register_forward_hook(lambda _m, _a, result, path=path: recording.add(path, result))
        for path, module in watched_modules(model)
    ]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def watched_modules(model: Decoder) -> list[tuple[str, nn.Module]]:
    """The modules whose output is the stream, and the routers."""
    found: list[tuple[str, nn.Module]] = [("embedding", model.embedding)]
    for index, block in enumerate(model.layers):
        path = f"layers.{index}"
        for part in _PARTS:
            module = getattr(block, part)
            if module is None:
                continue
            found += [(f"{path}.{part}.{n}", m) for n, m in module.named_modules() if isinstance(m, Router)]
            found.append((f"{path}.{part}", module))
        found.append((path, block))
    return found

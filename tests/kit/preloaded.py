"""What the processes that tests start have imported already: `FORKS` imports it once a session and forks them all."""

import gc
import importlib
import multiprocessing

from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])
for name in (
    "networkx",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "monograph.cli",
    "monograph.models.decoder",
    "monograph.train.adamw",
    "monograph.train.checkpoint.manager",
    "monograph.train.data.text_source",
    "monograph.train.metrics",
    "monograph.verify.run",
):
    importlib.import_module(name)
build_passes(PassesConfig())  # every pass is imported when it is built
gc.freeze()  # no run looks through what was imported when it collects its garbage

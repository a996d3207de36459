"""Artifacts of tiny models, and updates made from them. A file of its own: ranks import it."""

import os
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from monograph.commands.precompile import precompile
from monograph.errors import MonographError
from monograph.execute.artifact.folder import check_files, read_manifest
from monograph.execute.artifact.load import Artifact
from monograph.execute.artifact.trust import find_trust
from monograph.parallel.groups import joined_groups
from monograph.passes.config import PassesConfig
from monograph.run import build_step
from monograph.train.layout import plan_run_mesh
from monograph.train.startup import Startup
from tests.execute.updates import CPU, differences, make_updates, normalizers_of, read_batches, small

MODEL = "qwen3_moe"
DEGREES = {"shard": 2, "ep": 2}
GRAPH = {"compile.mode": "graph", "parallelism.fsdp": "graph", "model.n_layers": 1}
ROUTINGS = ((), (0,), (2, 3))
FORBIDDEN = (
    "monograph.capture.trace.trace_function",
    "monograph.run.capture",
    "monograph.run.run_passes",
    "monograph.passes.compile.regions.compile_graph",
    "torch.fx.experimental.proxy_tensor.make_fx",
    "torch.compile",
)
"""What captures and what asks for a compiler."""
COMPILERS = (
    "torch._inductor.standalone_compile",
    "torch._inductor.compile_fx.compile_fx",
    "torch._inductor.cpp_builder.CppBuilder.build",
)
"""The compiler itself, where it has been imported; where it has not, it must not be."""


def make_sections(parts=(), **changes):
    """What a manifest says of an artifact with one graph, as little as is allowed."""
    return {
        "config": {},
        "mesh": {"world": 1},
        "groups": {},
        "table": {},
        "inputs": {"step": {}},
        "passes": {"step": []},
        "digests": {"step": "0" * 32},
        "parts": {"step": list(parts)},
        "versions": {},
        "environment": {},
        "machine": {"device": "cpu"},
        **changes,
    }


def open_folder(folder, key=None, **trust):
    """The artifact in a folder, as far as it can be opened without a run to compare it with."""
    manifest = read_manifest(folder, key)
    check_files(folder, manifest)
    return Artifact(folder, manifest, find_trust(folder, manifest, **trust))


def make_config(folder, changes=None, model=MODEL, **degrees):
    return small(model, Path(folder), {**GRAPH, "validator.interval": 1, **(changes or {})}, **(degrees or DEGREES))


def make_artifact(folder, target, changes=None, ranks=2, **more):
    """Precompile as the command does; the files by name."""
    config = make_config(folder, changes, **more)
    return precompile(config, plan_run_mesh(config, ranks), Path(target))


@contextmanager
def nothing_made():
    """Whoever captures or compiles inside fails."""
    has_compiler = "torch._inductor.compile_fx" in sys.modules
    with ExitStack() as stack:
        for name in FORBIDDEN + (COMPILERS if has_compiler else ()):
            stack.enter_context(mock.patch(name, side_effect=AssertionError(f"{name} was called")))
        yield
    assert has_compiler or "torch._inductor.compile_fx" not in sys.modules, "the compiler was imported"


def compare_with_eager(folder, artifact):
    """On one rank: what differs between training from the artifact and eagerly, in updates and in evaluation."""
    eager = make_config(folder, {"compile.mode": "eager", "passes": PassesConfig()})
    loaded = make_config(folder, {"compile.artifact": str(artifact)})
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted = make_updates(eager, groups, routings=ROUTINGS), evaluate(eager, groups)
        with nothing_made():
            found = make_updates(loaded, groups, routings=ROUTINGS), evaluate(loaded, groups)
    return differences(wanted[0], found[0]), wanted[1] == found[1]


def evaluate(config, groups):
    """The loss of a first batch; the time an artifact took must be in the table of the start."""
    startup = Startup()
    step = build_step(config, groups, startup)
    assert ("artifact" in startup.seconds) == bool(config.compile.artifact)
    batch = read_batches(config, step, 1)[0]
    inputs = dict(batch.tensors)
    loss = step.evaluate(inputs, normalizers_of(step, valid_tokens=30)).item()
    step.close()
    return loss


def open_on_ranks(folder, artifacts, changes=None):
    """On one rank: how building a step from this rank's artifact ends."""
    rank = int(os.environ["RANK"])
    config = make_config(folder, {"compile.artifact": str(artifacts[rank]), **(changes or {})})
    with joined_groups(plan_run_mesh(config, int(os.environ["WORLD_SIZE"])), CPU) as groups:
        try:
            step = build_step(config, groups)
        except MonographError as error:
            return error.what, error.why
        return "built", "from the artifact" if step.artifact is not None else "by capturing"

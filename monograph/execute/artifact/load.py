"""From an artifact to graphs that run: nothing is traced, nothing is compiled, and nothing unchecked is read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from monograph.compat.compiler import KernelMissing, compiler_folder, load_compiled
from monograph.compat.triton_cache import put_kernels, triton_folder
from monograph.errors import MonographError
from monograph.execute.artifact.compare import find_differences
from monograph.execute.artifact.describe import describe_inputs, describe_table
from monograph.execute.artifact.fields import KERNELS, OWN_KERNELS, is_step, name_part
from monograph.execute.artifact.folder import read_file
from monograph.execute.artifact.make import CUSTOM_CALLS, TUNED
from monograph.execute.artifact.manifest import ArtifactError, ArtifactManifest
from monograph.execute.artifact.trust import Trust
from monograph.execute.custom_kernels import build_calls, calls_from_data
from monograph.execute.memory_limits import find_memory_limits
from monograph.execute.tuned_kernels import use_from_artifact
from monograph.graph.encode import GraphFileError
from monograph.graph.facts import Facts
from monograph.graph.file import graph_from_data, parse_graph_file
from monograph.graph.inputs import StepInputs
from monograph.graph.refuse import GraphError
from monograph.graph.signature import InputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.verify_read import MemoryLimits, check_read_graph, check_schema
from monograph.log import get_log
from monograph.parallel.param_table import ParamTable
from monograph.passes.compile.regions import CompiledRegion
from monograph.private_temporary import make_private_temporary, private_temporary
from monograph.system.foreign_json import parse_json
from monograph.system.own_tree import remove_made

log = get_log("artifact")


class StepFailed(MonographError):
    """A step that came from an artifact failed while it ran."""


class Artifact:
    """An artifact whose manifest was read, believed and found to fit; its other files are checked as they are read."""

    def __init__(self, folder: Path, manifest: ArtifactManifest, trust: Trust) -> None:
        self.folder, self.manifest, self.trust = folder, manifest, trust
        self._kernels: Path | None = None

    def graph(
        self,
        name: str,
        facts: Facts,
        *,
        specs: Sequence[InputSpec] | None = None,
        limits: MemoryLimits | None = None,
    ) -> StepGraph:
        """One of the graphs, ready to run in a run with these facts and inputs.

        Code is loaded last: only when the graph that calls it was found to be one.
        """
        parts = self.parts(name)
        content = self.read(f"{name}.json")
        try:
            graph = graph_from_data(parse_graph_file(content), {part: nn.Module() for part in parts})
            if specs is not None:
                check_schema(graph, specs)
            check_read_graph(graph, facts, is_forward=not is_step(name), limits=limits)
        except GraphError as error:
            raise self._refuse(name, f"{error.what}; {error.why}") from None
        except GraphFileError as error:
            raise self._refuse(name, str(error)) from None
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._refuse(name, f"it cannot be checked: {type(error).__name__}: {str(error)[:200]}") from None
        for part in parts:
            graph.module.add_module(part, self.part(name, part))
        return graph

    def _refuse(self, name: str, why: str) -> ArtifactError:
        lines = " ".join(why.split())
        return ArtifactError(
            f"{name}.json of the artifact {self.folder} holds no graph that this run may use",
            why=lines,
            do="get the artifact again from where it was made, or precompile it again",
        )

    def ran_passes(self, name: str) -> list[str]:
        """The passes that ran on a graph when the artifact was made."""
        return [each["name"] for each in self.manifest.sections["passes"][name] if each["status"] == "ran"]

    def parts(self, name: str) -> list[str]:
        """The compiled parts of a graph."""
        if name not in self.manifest.sections["parts"]:
            raise ArtifactError(f"the artifact {self.folder} has no graph {name}", do="precompile it again")
        return list(self.manifest.sections["parts"][name])

    def part(self, name: str, part: str) -> CompiledRegion:
        """One compiled part. It is code, and loaded only here, after its hash and its origin were checked."""
        content = self.read_code(name_part(name, part))
        kernels = self.unpack_kernels()
        path = kernels / f"{name}-{part}.bin"
        path.write_bytes(content)
        try:
            with compiler_folder(kernels, is_complete=True):
                return CompiledRegion(load_compiled(path))
        except KernelMissing as error:
            raise ArtifactError(
                f"{part} of the artifact needs a kernel that is not in it",
                why=str(error),
                do="precompile it on a machine with the same compiler, Python and torch in the same places",
            ) from None

    def use_tuned_settings(self, device: torch.device) -> None:
        """Launch kernels with the settings they were built with, on the kind of GPU that these were tuned for."""
        if CUSTOM_CALLS not in self.manifest.files:
            return
        try:
            use_from_artifact(self.read(TUNED) if TUNED in self.manifest.files else None, device)
        except ValueError as error:
            raise ArtifactError("the artifact's tuned settings cannot be read", why=str(error)) from None

    def load_custom_kernels(self) -> bool:
        """Load the kernels of custom ops; False when they have to be built here, because there are none or nobody
        vouches for them."""
        if CUSTOM_CALLS not in self.manifest.files:
            return False
        found = [name for name in self.manifest.files if name.startswith(OWN_KERNELS)]
        if found and not self.trust.may_run_code:
            log.warning("kernels of custom ops are built here: other users could have written those in the artifact")
            return False
        files = {name.removeprefix(OWN_KERNELS): self.read_code(name) for name in found}
        with private_temporary("monograph-kernels-") as folder:
            try:
                calls = calls_from_data(parse_json(self.read(CUSTOM_CALLS), CUSTOM_CALLS))
                put_kernels(folder, files)
            except (ValueError, RecursionError) as error:
                raise ArtifactError("the artifact's own kernels cannot be read", why=str(error)) from None
            with triton_folder(folder):
                build_calls(calls)
        return True

    def unpack_kernels(self) -> Path:
        """The compiled kernels in a folder of this process alone, where nobody else can put anything."""
        if self._kernels is None:
            folder = make_private_temporary("monograph-kernels-")
            for name in self.manifest.files:
                if name.startswith(KERNELS):
                    path = folder / name.removeprefix(KERNELS)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(self.read_code(name))
                    path.chmod(0o700)
            self._kernels = folder
        return self._kernels

    def read(self, name: str) -> bytes:
        """A file's content, checked."""
        return read_file(self.folder, self.manifest, name)

    def read_code(self, name: str) -> bytes:
        """A file that is going to be run: asked once more, as it is read, who else can write it."""
        if not self.trust.may_run_code:
            raise ArtifactError(f"{name} of the artifact is code that other users could have written")
        return read_file(self.folder, self.manifest, name, is_private=self.trust.must_be_private)

    def misfits(self, table: ParamTable, inputs: Mapping[str, Iterable[InputSpec]], device: torch.device) -> list[str]:
        """How this run's parameters, inputs (by graph) and device are not what the artifact was made for."""
        sections = self.manifest.sections
        found = find_differences(sections["table"], describe_table(table), "table")
        for name, specs in inputs.items():
            if name in sections["inputs"]:
                found += find_differences(sections["inputs"][name], describe_inputs(specs), "inputs")
            else:
                found.append(f"graphs: artifact {', '.join(sections['inputs'])}; this run needs {name}")
        if self.manifest.has_compiled_parts and device.type == "cuda" and device.index not in (None, 0):
            found.append(f"device: artifact cuda:0, this run {device} (let every rank see one GPU only)")
        return found

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._kernels is not None:
            remove_made(self._kernels)
            self._kernels = None


@contextmanager
def failures_explained(artifact: Artifact | None) -> Iterator[None]:
    """What a graph's operators raise is told in words where the graph came from an artifact; memory and links are not
    its fault."""
    try:
        yield
    except (MonographError, torch.OutOfMemoryError, dist.DistError):
        raise
    except (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if artifact is None:
            raise
        raise StepFailed(
            f"the step of the artifact {artifact.folder} failed while it ran",
            why=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}",
            do="run without --compile.artifact; if that works, precompile again",
        ) from error


def read_graph(artifact: Artifact, name: str, facts: Facts, inputs: StepInputs) -> StepGraph:
    """One of an artifact's graphs, checked against a run with these facts and inputs."""
    return artifact.graph(name, facts, specs=inputs.specs(), limits=find_memory_limits(inputs.coords.device))

"""From an artifact to graphs that run: nothing is traced, nothing is compiled, and nothing unchecked is read."""

import json
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch

from monograph.compat.compiler import KernelMissing, compiler_folder, load_compiled
from monograph.compat.triton_cache import put_kernels, triton_folder
from monograph.execute.artifact.compare import find_differences
from monograph.execute.artifact.describe import describe_inputs, describe_table
from monograph.execute.artifact.folder import read_file
from monograph.execute.artifact.make import OWN_CALLS, OWN_KERNELS, name_part
from monograph.execute.artifact.manifest import ArtifactError, Manifest
from monograph.execute.own_kernels import build_calls, calls_from_data
from monograph.graph.encode import GraphFileError
from monograph.graph.file import graph_from_data
from monograph.graph.signature import InputSpec
from monograph.graph.step_graph import StepGraph
from monograph.parallel.param_table import ParamTable
from monograph.passes.compile.regions import CompiledRegion

STEP, EVALUATION = "step", "evaluation"
"""The graphs of an artifact."""


class Artifact:
    """An artifact whose manifest was read, believed and found to fit; its other files are checked as they are read."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._kernels: Path | None = None

    def graph(self, name: str) -> StepGraph:
        """One of the graphs, ready to run."""
        try:
            data = json.loads(self.read(f"{name}.json"))
            return graph_from_data(data, {part: self.part(name, part) for part in self.parts(name)})
        except (GraphFileError, ValueError, RecursionError) as error:
            raise ArtifactError(f"{name}.json of the artifact holds no graph", why=str(error)) from None

    def parts(self, name: str) -> list[str]:
        """The compiled parts of a graph."""
        return list(self.manifest.sections["parts"][name])

    def part(self, name: str, part: str) -> CompiledRegion:
        """One compiled part. It is code: only here, and only after its hash was checked, is it loaded."""
        content = self.read(name_part(name, part))
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

    def load_own_kernels(self) -> None:
        """Load the kernels of our own ops, if there are any; what does not fit this machine is built here instead."""
        if OWN_CALLS not in self.manifest.files:
            return
        found = [name for name in self.manifest.files if name.startswith(OWN_KERNELS)]
        files = {name.removeprefix(OWN_KERNELS): self.read(name) for name in found}
        with tempfile.TemporaryDirectory(prefix="monograph-kernels-") as folder:
            try:
                calls = calls_from_data(json.loads(self.read(OWN_CALLS)))
                put_kernels(Path(folder), files)
            except (ValueError, RecursionError) as error:
                raise ArtifactError("the artifact's own kernels cannot be read", why=str(error)) from None
            with triton_folder(Path(folder)):
                build_calls(calls)

    def unpack_kernels(self) -> Path:
        """The compiled kernels in a folder of this process alone, where nobody else can put anything."""
        if self._kernels is None:
            folder = Path(tempfile.mkdtemp(prefix="monograph-kernels-"))
            for name in self.manifest.files:
                if name.startswith("kernels/"):
                    path = folder / name.removeprefix("kernels/")
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(self.read(name))
                    path.chmod(0o700)
            self._kernels = folder
        return self._kernels

    def read(self, name: str) -> bytes:
        """A file's content, checked."""
        return read_file(self.folder, self.manifest, name)

    def misfits(self, table: ParamTable, specs: Iterable[InputSpec], device: torch.device) -> list[str]:
        """How this run's parameters, inputs and device are not what the artifact was made for."""
        sections = self.manifest.sections
        found = find_differences(sections["table"], describe_table(table), "table")
        found += find_differences(sections["inputs"][STEP], describe_inputs(specs), "inputs")
        if any(sections["parts"].values()) and device.type == "cuda" and device.index not in (None, 0):
            found.append(f"device: artifact cuda:0, this run {device} (let every rank see one GPU only)")
        return found

    def close(self) -> None:
        """Remove what was unpacked."""
        if self._kernels is not None:
            shutil.rmtree(self._kernels, ignore_errors=True)
            self._kernels = None

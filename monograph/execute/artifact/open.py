"""Opening an artifact: verify its files, compare it with this run, and agree with the other ranks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monograph.capture.capture import GraphKind
from monograph.config.configurable import BaseConfig
from monograph.errors import ConfigError
from monograph.execute.artifact.check import find_misfits, misfit_error, trust_code
from monograph.execute.artifact.compare import find_differences
from monograph.execute.artifact.describe import PLANNED_FOR, describe_machine
from monograph.execute.artifact.fields import STEP, name_graph
from monograph.execute.artifact.folder import check_files, read_manifest
from monograph.execute.artifact.keys import read_key
from monograph.execute.artifact.load import Artifact, read_graph
from monograph.execute.artifact.manifest import ArtifactManifest
from monograph.execute.artifact.node_copy import find_node, is_first_of_node, make_copy
from monograph.execute.config import CompileConfig
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.log import get_log
from monograph.machine.device import Machine
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.passes.runner import OptimizedGraph

log = get_log("artifact")


@dataclass(frozen=True)
class _Opened:
    """What one rank found."""

    answer: str
    """The same on ranks that can go on together."""
    artifact: Artifact | None = None
    misfits: Sequence[str] = ()
    error: ConfigError | None = None


def open_artifact(config: BaseConfig, settings: CompileConfig, groups: Groups, machine: Machine) -> Artifact | None:
    """The artifact the settings name, once all ranks have found the same one and it fits; None to compile instead.

    The first rank of a node reads it, and copies it to the node's disk where the settings say so; then the others read.
    A rank that cannot use it tells the others first: all of them stop, and each says which rank it was.
    """
    shared, is_first = Path(settings.artifact), is_first_of_node()
    opened = _open(shared, config, settings, groups, machine, copies=True) if is_first else None
    used = opened.artifact.folder if opened is not None and opened.artifact is not None else shared
    told = groups.all_gather_object((find_node(), used if used != shared else None))
    if opened is None:
        copies = [copy for node, copy in told if node == find_node() and copy is not None]
        opened = _open(copies[0] if copies else shared, config, settings, groups, machine)
    groups.check_same("the artifact", opened.answer, text=lambda: opened.answer)
    if opened.error is not None:
        raise opened.error
    if is_refused(settings, opened.misfits, groups) or opened.artifact is None:
        return None
    warning = opened.artifact.trust.warn(shared)
    if warning and groups.rank == 0:
        log.warning("%s", warning)
    return opened.artifact


def _open(
    folder: Path,
    config: BaseConfig,
    settings: CompileConfig,
    groups: Groups,
    machine: Machine,
    *,
    copies: bool = False,
) -> _Opened:
    """Read and check an artifact on this rank. Whose code may run is decided by the folder, before it is copied."""
    try:
        manifest = read_manifest(folder, read_key(settings.artifact_key_file))
        found = find_misfits(manifest, config, groups.mesh) + find_machine_misfits(manifest, groups, machine)
        trust = None if found else trust_code(folder, manifest, config, settings)
        if copies and settings.artifact_cache and trust is not None:
            folder = make_copy(folder, manifest, trust, Path(settings.artifact_cache))
        else:
            check_files(folder, manifest)
        artifact = Artifact(folder, manifest, trust) if trust is not None else None
        return _Opened(f"{manifest.digest} {'; '.join(found)}", artifact, found)
    except ConfigError as refused:
        return _Opened(str(refused), error=refused)


@dataclass(frozen=True)
class WantedGraph:
    """A graph that a run needs, and what it must fit."""

    kind: GraphKind
    facts: Facts
    inputs: StepInputs
    stage: int | None = None
    """Of a pipeline."""

    @property
    def name(self) -> str:
        """What an artifact calls it."""
        return name_graph(self.kind, self.stage)


def read_graphs(
    artifact: Artifact, settings: CompileConfig, table: ParamTable, wanted: Sequence[WantedGraph], groups: Groups
) -> list[OptimizedGraph]:
    """The artifact's graphs, in the order they are wanted in, if they fit this run; none to capture instead.

    When one rank cannot read them, all of them stop, and that rank says why.
    """
    specs = {each.name: each.inputs.specs() for each in wanted if each.kind == STEP}
    if is_refused(settings, artifact.misfits(table, specs, groups.device), groups):
        return []
    error: ConfigError | None = None
    graphs: list[OptimizedGraph] = []
    try:
        for each in wanted:
            graph = read_graph(artifact, each.name, each.facts, each.inputs)
            graphs.append(OptimizedGraph(graph, ran_before=artifact.ran_passes(each.name)))
    except ConfigError as refused:
        error = refused
    if groups.any_rank(error is not None):
        raise error or ConfigError("the artifact cannot be used", why="another rank refused it, and says why")
    return graphs


def is_refused(settings: CompileConfig, found: Sequence[str], groups: Groups) -> bool:
    """Whether to compile instead, on all ranks if on one; an error where the settings do not ask for that."""
    if not groups.any_rank(bool(found)):
        return False
    error = misfit_error(settings.artifact, list(found) or ["it does not fit another rank, which says why"])
    if settings.artifact_on_mismatch != "compile":
        raise error
    log.warning("%s: %s; capturing and compiling instead", error.what, error.why)
    return True


def find_machine_misfits(manifest: ArtifactManifest, groups: Groups, machine: Machine) -> list[str]:
    """How this rank's device is not the one the code was made for, or the run's machine not the one of the plan."""
    theirs = manifest.sections["machine"]
    is_planned = any(name.startswith(PLANNED_FOR) for name in theirs)
    planned_for = machine if is_planned else None
    here = describe_machine(groups.device, is_compiled=manifest.has_compiled_parts, planned_for=planned_for)
    return find_differences(theirs, here, "machine")

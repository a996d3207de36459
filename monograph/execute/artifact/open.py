"""Opening an artifact: believe it, compare it, and agree with the other ranks before anything of it runs."""

from pathlib import Path
from typing import Any

from monograph.config.configurable import BaseConfig
from monograph.errors import ConfigError
from monograph.execute.artifact.check import find_misfits, misfit_error
from monograph.execute.artifact.compare import find_differences
from monograph.execute.artifact.describe import describe_machine
from monograph.execute.artifact.folder import check_files, read_key, read_manifest
from monograph.execute.artifact.load import Artifact
from monograph.execute.config import CompileConfig
from monograph.log import get_log
from monograph.parallel.groups import Groups

log = get_log("artifact")


def open_artifact(config: BaseConfig, settings: CompileConfig, groups: Groups) -> Artifact | None:
    """The artifact the settings name, once all ranks have found the same one and it fits; None to compile instead.

    A rank that cannot use it tells the others first: all of them stop, and each says which rank it was.
    """
    folder = Path(settings.artifact)
    error: ConfigError | None = None
    found: list[str] = []
    artifact: Artifact | None = None
    try:
        manifest = read_manifest(folder, read_key(settings.artifact_key_file))
        check_files(folder, manifest)
        artifact = Artifact(folder, manifest)
        found = find_misfits(manifest, config, groups.mesh) + find_machine_misfits(artifact, groups)
        answer = f"{manifest.digest} {'; '.join(found)}"
    except ConfigError as refused:
        error, answer = refused, str(refused)
    groups.check_same("the artifact", answer, text=lambda: answer)
    if error is not None:
        raise error
    return None if is_refused(settings, found, groups) else artifact


def is_refused(settings: CompileConfig, found: list[str], groups: Groups) -> bool:
    """Whether to compile instead, on all ranks if on one; an error where the settings do not ask for that."""
    if not groups.any(bool(found)):
        return False
    error = misfit_error(settings.artifact, found or ["it does not fit another rank, which says why"])
    if settings.artifact_on_mismatch != "compile":
        raise error
    log.warning("%s: %s; capturing and compiling instead", error.what, error.why)
    return True


def find_machine_misfits(artifact: Artifact, groups: Groups) -> list[str]:
    """How this rank's machine is not the one the code was made for."""
    sections: Any = artifact.manifest.sections
    here = describe_machine(groups.device, is_compiled=any(sections["parts"].values()))
    return find_differences(sections["machine"], here, "machine")

"""The part of the comparison that needs no torch: it answers before anything starts."""

from pathlib import Path
from typing import Any

from monograph.config.configurable import BaseConfig
from monograph.errors import ConfigError
from monograph.execute.artifact.compare import (
    describe_groups,
    find_differences,
    find_optimizer_misfit,
    find_own_code,
    resolve_config,
)
from monograph.execute.artifact.folder import check_files, read_manifest
from monograph.execute.artifact.keys import read_key
from monograph.execute.artifact.machine import describe_here
from monograph.execute.artifact.manifest import ArtifactManifest
from monograph.execute.artifact.trust import Trust, check_code, find_trust
from monograph.execute.config import CompileConfig
from monograph.models.attention_kernel_config import uses_flex
from monograph.parallel.mesh import Mesh

SHOWN = 8
"""Differences an error shows."""


def find_misfits(manifest: ArtifactManifest, config: BaseConfig, mesh: Mesh) -> list[str]:
    """Every field in which the artifact was made for something else, with both values."""
    sections = manifest.sections
    resolved, ranks = resolve_config(config, mesh), sections["mesh"]["world"]
    found = [f"{each} (--ranks {ranks} starts as many)" for each in find_differences(ranks, mesh.world_size, "ranks")]
    found += find_differences(sections["config"], resolved)
    found += find_optimizer_misfit(sections["config"], resolved)
    found += find_differences(sections["groups"], describe_groups(mesh), "groups")
    here = describe_here(find_own_code(config))
    for name in ("versions", "environment"):
        found += find_differences(sections[name], here[name], name)
    return found


def check_before_start(config: BaseConfig, settings: CompileConfig, mesh: Mesh) -> None:
    """Refuse an artifact that does not fit while nothing has been started; falling back is decided by the run."""
    folder = Path(settings.artifact)
    manifest = read_manifest(folder, read_key(settings.artifact_key_file))
    check_files(folder, manifest)
    found = find_misfits(manifest, config, mesh)
    if found and settings.artifact_on_mismatch == "error":
        raise misfit_error(folder, found)
    if not found:
        trust_code(folder, manifest, config, settings)


def trust_code(folder: Path, manifest: ArtifactManifest, config: BaseConfig, settings: CompileConfig) -> Trust:
    """Who vouches for the artifact; refused when it has code that this run may not load."""
    trust = find_trust(folder, manifest, is_shared_trusted=settings.artifact_trust_shared_folder)
    whole: Any = config  # the trainer's, which is not known here
    check_code(folder, manifest, trust, is_asked_for=whole.passes.has_compiler or uses_flex(whole.model))
    return trust


def misfit_error(folder: Path | str, found: list[str]) -> ConfigError:
    """The error of an artifact that was made for another run."""
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ConfigError(
        f"the artifact {folder} was made for another run",
        why="; ".join(found[:SHOWN]) + more,
        do="run it as it was made, precompile again with these flags, or --compile.artifact_on_mismatch compile",
    )

"""A node's own copy of an artifact on a shared file system: one rank of a node makes it, all of its ranks read it.

Without a copy, the other ranks wait until the first one of their node has read the shared folder, so that they find its
files in the memory of the node. Loads without torch.
"""

import os
from pathlib import Path

from monograph.errors import ConfigError
from monograph.execute.artifact.folder import (
    check_files,
    read_file,
    read_manifest,
    read_manifest_bytes,
    write_folder,
)
from monograph.execute.artifact.manifest import MANIFEST, ArtifactError, ArtifactManifest, parse_manifest
from monograph.execute.artifact.trust import Trust
from monograph.log import get_log

log = get_log("artifact")


def is_first_of_node() -> bool:
    """Whether this rank reads for its node; a process without a launcher does."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def find_node() -> str:
    """What tells this rank's node from others: the number that its agent has."""
    return os.environ.get("GROUP_RANK", "0")


def make_copy(folder: Path, manifest: ArtifactManifest, trust: Trust, cache: Path) -> Path:
    """The artifact's copy in `cache`, made now unless a whole one is there. Every byte was checked, in either case.

    Readers of the copy do not check again whether its code may run, so an artifact with code that may not is refused.
    """
    if not trust.may_run_code:
        raise ArtifactError(
            f"the artifact {folder} cannot be copied to compile.artifact_cache {cache}",
            why=f"it is {trust.signature}, other users can change it, and a copy would hide that",
            do="sign it (monograph artifact sign) and give the key, chmod -R go-w it, or leave the cache out",
        )
    target = cache / manifest.digest
    if is_whole(target, manifest):
        return target
    data = read_manifest_bytes(folder)
    if parse_manifest(data, None).digest != manifest.digest:
        raise ArtifactError(f"the artifact {folder} was replaced while it was read", do="start again")
    contents = [(name, read_file(folder, manifest, name)) for name in manifest.files]
    try:
        write_folder(target, [*contents, (MANIFEST, data)], overwrite=True)
    except (OSError, ConfigError) as error:
        if is_whole(target, manifest):  # another process was faster
            return target
        why = error.why if isinstance(error, ConfigError) else str(error)
        raise ArtifactError(
            f"the artifact cannot be copied to compile.artifact_cache {cache}",
            why=why,
            do="choose a folder on a disk of the node that has room, or leave --compile.artifact_cache out",
        ) from None
    log.info("copied the artifact %s to %s", folder, target)
    return target


def is_whole(copy: Path, manifest: ArtifactManifest) -> bool:
    """Whether a folder holds this artifact, undamaged."""
    try:
        if read_manifest(copy).digest != manifest.digest:
            return False
        check_files(copy, manifest)
    except ArtifactError:
        return False
    return True

"""Whether the code in an artifact may run: decided by who could have written it. Loads without torch.

A graph is checked node by node and needs no trust. Compiled parts and kernels are code, and nothing can be checked of
them but who vouches for them: a key, or a folder that only its owner can write to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from monograph.execute.artifact.keys import Signature
from monograph.execute.artifact.manifest import MANIFEST, ArtifactError, ArtifactManifest
from monograph.permissions import find_exposed, find_exposed_parents

SHOWN = 3
"""Paths that a message shows."""


@dataclass(frozen=True)
class Trust:
    """Who vouches for an artifact."""

    signature: Signature
    exposed: Sequence[str]
    """`PATH: who else can write there`, for everything of it."""
    is_shared_trusted: bool = False
    """Whether the settings say that whoever can write to the folder is trusted."""

    @property
    def may_run_code(self) -> bool:
        """Whether compiled parts and kernels are loaded."""
        return self.signature.is_verified or self.is_shared_trusted or not self.exposed

    @property
    def must_be_private(self) -> bool:
        """Whether files with code are asked once more, as they are read, who else can write them."""
        return not (self.signature.is_verified or self.is_shared_trusted)

    def warn(self, folder: Path) -> str:
        """What a person should know about the folder; empty when there is nothing."""
        if self.signature.is_verified or not self.exposed:
            return ""
        return (
            f"the artifact {folder} is {self.signature}, and other users can change it ({_list(self.exposed)}); "
            f"sign it with `monograph artifact sign {folder} --key_file FILE` and train with "
            f"--compile.artifact_key_file FILE, or take their right to write away with `chmod -R go-w {folder}`, "
            "or keep it below folders of your own"
        )


def find_trust(folder: Path, manifest: ArtifactManifest, *, is_shared_trusted: bool = False) -> Trust:
    """Users who can write to an artifact or put another in its place, and its signature."""
    files = [folder / name for name in (MANIFEST, *manifest.files)]
    inside = {parent for file in files for parent in file.parents if parent.is_relative_to(folder)}
    paths = [folder, *sorted(inside - {folder}), *files]
    exposed = [*find_exposed(paths), *find_exposed_parents(folder)]
    return Trust(manifest.signature, exposed, is_shared_trusted)


def check_code(folder: Path, manifest: ArtifactManifest, trust: Trust, *, is_asked_for: bool) -> None:
    """Refuse compiled parts that this run did not ask for, or that other users could have written."""
    if not manifest.has_compiled_parts:
        return
    if not is_asked_for:
        raise ArtifactError(
            f"the artifact {folder} has compiled parts, and this run compiles nothing",
            why="they are code that would run, and no pass of this run makes any",
            do="precompile again with these flags",
        )
    if not trust.may_run_code:
        raise ArtifactError(
            f"the artifact {folder} has compiled code, is {trust.signature}, and other users can change it",
            why=f"loading it would run what any of them wrote: {_list(trust.exposed)}",
            do=f"sign it (monograph artifact sign {folder}) and give the key, or chmod -R go-w {folder} and keep it "
            "below folders of your own, or --compile.artifact_trust_shared_folder true",
        )


def _list(exposed: Sequence[str]) -> str:
    more = f"; and {len(exposed) - SHOWN} more" if len(exposed) > SHOWN else ""
    return "; ".join(exposed[:SHOWN]) + more

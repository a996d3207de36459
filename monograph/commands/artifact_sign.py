"""`monograph artifact sign` and `artifact verify`: vouch for an artifact with a key, and check that somebody did."""

from pathlib import Path

from monograph.commands.arguments import ArtifactSignArguments, ArtifactVerifyArguments
from monograph.errors import ConfigError
from monograph.execute.artifact.folder import check_files, read_manifest, read_manifest_bytes, sign_manifest
from monograph.execute.artifact.keys import Status, find_fingerprint, is_signed_with, need_key
from monograph.execute.artifact.manifest import ArtifactManifest, open_envelope, parse_manifest
from monograph.execute.artifact.trust import find_trust
from monograph.plurals import counted
from monograph.system.console import print_plain


def sign_artifact(arguments: ArtifactSignArguments) -> int:
    """Sign what is there, once it is whole: with the key, later changes by others can be detected."""
    folder = Path(arguments.folder)
    key = need_key(arguments.key_file, "artifact sign")
    data = read_manifest_bytes(folder)
    manifest = parse_manifest(data, None)
    check_files(folder, manifest)
    envelope, fingerprint = open_envelope(data), find_fingerprint(key)
    is_mine = is_signed_with(envelope.signed, envelope.signature, key)
    if manifest.signature.status is not Status.UNSIGNED and not is_mine and not arguments.overwrite:
        raise ConfigError(
            f"{folder} is signed already, and not with key {fingerprint}",
            why="it was signed with another key, or changed after it was signed with this one",
            do="monograph artifact verify DIR with the other key, or --overwrite true",
        )
    exposed = find_trust(folder, manifest).exposed
    did_sign = sign_manifest(folder, data, key)
    print_plain(f"{folder}: {describe(manifest)}")
    if exposed and not is_mine:
        print_plain(
            f"warning: other users could change it until now ({exposed[0]}); the signature vouches for what is there, "
            "so sign what you made yourself"
        )
    print_plain(f"{'signed' if did_sign else 'already signed'} with key {fingerprint}")
    return 0


def verify_artifact(arguments: ArtifactVerifyArguments) -> int:
    """Whether an artifact was signed with the key, and is what was signed."""
    folder = Path(arguments.folder)
    manifest = read_manifest(folder, need_key(arguments.key_file, "artifact verify"))
    check_files(folder, manifest)
    print_plain(f"{folder}: {describe(manifest)}")
    print_plain(f"{manifest.signature}; all hashes match")
    return 0


def describe(manifest: ArtifactManifest) -> str:
    """What a signature vouches for."""
    code = len(manifest.code_files)
    what = f"{code} of them code that runs when it is loaded" if code else "none of them code"
    return f"{counted(len(manifest.files), 'file')}, {what}"

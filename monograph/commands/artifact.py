"""`monograph artifact show` and `artifact check`: what an artifact is, and whether a run can use it; without torch."""

from pathlib import Path
from typing import Any

from monograph.commands.arguments import ArtifactShowArguments
from monograph.commands.terminal import print_rows, print_title
from monograph.errors import EXIT_WRONG_INPUT
from monograph.execute.artifact.check import find_misfits, trust_code
from monograph.execute.artifact.compare import MAY_DIFFER, flatten, show
from monograph.execute.artifact.fields import is_step
from monograph.execute.artifact.folder import check_files, read_manifest
from monograph.execute.artifact.keys import read_key
from monograph.execute.artifact.trust import find_trust
from monograph.plurals import counted
from monograph.system.console import print_plain
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh

_STYLES = ("bold cyan", "none")


def show_artifact(arguments: ArtifactShowArguments) -> int:
    """What it was made for, who vouches for it, and what is in it."""
    folder = Path(arguments.folder)
    manifest = read_manifest(folder, read_key(arguments.key_file))
    check_files(folder, manifest)
    sections = manifest.sections
    size = sum(record.size for record in manifest.files.values())
    print_title(
        str(folder), f"{counted(len(manifest.files), 'file')}, {size:,} bytes, {manifest.signature}; all hashes match"
    )
    print_plain(f"sha256 of the manifest: {manifest.digest}")
    print_plain(f"files with code: {len(manifest.code_files)}")
    _print_warning(find_trust(folder, manifest).warn(folder))
    _print_section("Mesh", sections["mesh"] | {f"group {name}": count for name, count in sections["groups"].items()})
    _print_section("Made with", {**sections["versions"], **sections["environment"]})
    _print_section("Made for", sections["machine"])
    for name, digest in sections["digests"].items():
        passes = [each for each in sections["passes"][name] if each["status"] == "ran"]
        print_title(f"Graph {name}", f"digest {digest}, {counted(len(sections['parts'][name]), 'compiled part')}")
        print_rows([(each["name"], each["note"]) for each in passes], _STYLES)
    print_title("Parameters and inputs", counted(len(sections["table"]), "slot"))
    shown = [each for name, each in sections["inputs"].items() if arguments.all and is_step(name)]
    print_rows([row for each in shown for row in each.items()], _STYLES)
    print_title("Configuration")
    rows = [(path, show(value)) for path, value in flatten(sections["config"]) if arguments.all or _is_told(path)]
    print_rows(rows, _STYLES)
    print_title("Files")
    print_rows([(name, f"{record.size:>12,}  {record.sha256}") for name, record in manifest.files.items()], _STYLES)
    return 0


def _is_told(path: str) -> bool:
    return path.split(".")[0] in ("training", "parallelism", "compile", "passes", "debug") and "$" not in path


def _print_section(title: str, values: dict[str, Any]) -> None:
    print_title(title)
    print_rows([(name, show(value)) for name, value in values.items()], _STYLES)


def _print_warning(warning: str) -> None:
    if warning:
        print_plain(f"warning: {warning}")


def check_artifact(config: TrainerConfig, *, folder: str, ranks: int) -> int:
    """Whether the run that these words describe can use the artifact; every reason why not."""
    path = Path(folder)
    manifest = read_manifest(path, read_key(config.compile.artifact_key_file))
    check_files(path, manifest)
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    found = find_misfits(manifest, config, mesh)
    for line in found:
        print_plain(line)
    if found:
        print_plain(f"{folder} does not fit: {counted(len(found), 'difference')}")
        return EXIT_WRONG_INPUT
    trust = trust_code(path, manifest, config, config.compile)
    later = "the machine, parameters, inputs and graphs are checked when it is loaded"
    on = counted(mesh.world_size, "rank")
    print_plain(f"{folder} fits a run on {on} ({manifest.signature}; {later})")
    _print_warning(trust.warn(path))
    print_plain(f"not compared: {', '.join(MAY_DIFFER)}")
    return 0

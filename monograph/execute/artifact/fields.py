"""What an artifact's manifest says, and what each field of it must be. Loads without torch."""

import re
from collections.abc import Mapping
from typing import Any

from monograph.manifest.fields import (
    Check,
    ManifestError,
    integer,
    json_object,
    json_value,
    listing,
    mapping,
    read_files,
    record,
    text,
)

GRAPHS = STEP, EVALUATION = "step", "evaluation"
"""The graphs of an artifact; that of a pipeline has both for every stage, with the stage's number in their names."""
REGIONS, KERNELS, OWN_KERNELS = "regions/", "kernels/", "own/kernels/"
"""Where an artifact has code: compiled parts, the C++ kernels they call, and the kernels of custom ops."""


def name_graph(kind: str, stage: int | None) -> str:
    """What a graph is called: that of a pipeline's stage has its number."""
    return kind if stage is None else f"{kind}_{stage}"


def is_step(name: str) -> bool:
    """Whether a graph is a training step; others are forwards."""
    return name.partition("_")[0] == STEP


def by_graph(each: Check) -> Check:
    """An entry for every graph; a step is always there, in a pipeline one for every stage."""

    def check(value: Any, path: str) -> None:
        staged = [name for name in value if name.startswith(f"{STEP}_")] if isinstance(value, dict) else []
        stages = range(len(staged)) if staged else (None,)
        needs, others = (tuple(name_graph(kind, stage) for stage in stages) for kind in GRAPHS)
        mapping(each, needs=needs, only=(*needs, *others))(value, path)

    return check


_sizes = listing(integer(0))
_texts = listing(text())
_slot = record(
    {"names": _texts, "shape": _sizes, "local_shape": _sizes, "cuts": _texts, "unit": text(), "order": integer(0)}
)
_pass = record(
    {
        **dict.fromkeys(("name", "status", "note"), text()),
        "options": json_object,
        **dict.fromkeys(("added", "removed", "moved"), integer(0)),
    }
)
SECTIONS: Mapping[str, Check] = {
    "config": json_object,
    "mesh": mapping(integer(1), needs=("world",)),
    "groups": mapping(integer(1)),
    "table": mapping(_slot),
    "inputs": by_graph(mapping(text())),
    "passes": by_graph(listing(_pass)),
    "digests": by_graph(text(r"[0-9a-f]{32}", "32 hexadecimal digits")),
    "parts": by_graph(listing(text(r"compiled(_[0-9]{1,9})?", "compiled or compiled_NUMBER"))),
    "versions": mapping(text()),
    "environment": mapping(text()),
    "machine": mapping(json_value, needs=("device",)),
}
"""What a manifest says besides its files, in this order."""

_PIECE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
FILE_NAME = re.compile(rf"{_PIECE}(/{_PIECE}){{0,3}}")
"""Stays inside of the folder."""


def check_content(content: Mapping[str, Any]) -> None:
    """Every field of a manifest behind its schema."""
    known = {"sha256", "hmac", "schema", *SECTIONS, "files"}
    odd = [name for name in content if name not in known]
    if odd:
        raise ManifestError(f"it has the field {odd[0]!r:.60}")
    for name in (*SECTIONS, "files"):
        if name not in content:
            raise ManifestError(f"{name} is missing")
    for name, check in SECTIONS.items():
        check(content[name], name)
    read_files(content["files"], "files", FILE_NAME)
    check_parts(content)


def check_parts(content: Mapping[str, Any]) -> None:
    """Graphs and compiled parts have their files, and there is no compiled part that no graph has."""
    listed = {name_part(graph, part) for graph, parts in content["parts"].items() for part in parts}
    found = {name for name in content["files"] if name.startswith(REGIONS)}
    if listed != found:
        raise ManifestError(f"parts and files disagree about {', '.join(sorted(listed ^ found))[:200]}")
    if not listed and any(name.startswith(KERNELS) for name in content["files"]):
        raise ManifestError(f"files has {KERNELS}, and parts has no compiled part that could use them")
    for graph in content["parts"]:
        if f"{graph}.json" not in content["files"]:
            raise ManifestError(f"files.{graph}.json is missing")
    for section in ("inputs", "passes", "digests"):
        if content[section].keys() != content["parts"].keys():
            raise ManifestError(f"{section} and parts name different graphs")


def name_part(graph: str, part: str) -> str:
    """The file of one part's compiled code."""
    return f"{REGIONS}{graph}-{part}.bin"
